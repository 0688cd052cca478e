//! Sequences on the data path are paired by `zip_eq`, which refuses two that differ in length (invariant DP-2).

use zagros_tests::sources;

/// Folders that carry ids, rows or gradients. `Iterator::zip` hides a missing item there.
const CHECKED: &[&str] =
    &["protocol", "plumbing/src/grpc", "embedding-server/src", "embedding-server/client", "embedding-server/tests"];

#[test]
fn the_data_path_pairs_only_sequences_of_equal_length() {
    // Written in two parts so that this file does not find itself.
    let banned = [concat!(".zi", "p("), concat!("iter::zi", "p")];
    for folder in CHECKED {
        for (path, text) in sources(folder) {
            for (number, line) in text.lines().enumerate() {
                let found = banned.iter().find(|banned| line.contains(**banned));
                let line = number + 1;
                assert!(
                    found.is_none(),
                    "{}:{line}: zip ends with the shorter one; use zip_eq of zagros-zip",
                    path.display()
                );
            }
        }
    }
}
