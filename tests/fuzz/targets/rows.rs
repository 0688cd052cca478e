//! Files of rows that may have been cut, changed or never been any.

use std::fs;

use bolero::check;
use tempfile::TempDir;
use zagros_rows::snapshot::{SavedFile, verify_file};

const GOOD: [&[u8]; 2] = [
    include_bytes!("../../../embedding-server/rows/tests/fixtures/v3.zrows"),
    include_bytes!("../../../embedding-server/rows/tests/fixtures/v2.zrows"),
];

/// Whether the bytes are a whole file; if not, the reason names the file.
fn is_whole(folder: &TempDir, bytes: &[u8]) -> bool {
    let path = folder.path().join("rows.zrows");
    fs::write(&path, bytes).expect("room for a small file");
    verify_file(&SavedFile::on_disk(&path), |_| ())
        .map_err(|error| assert!(error.to_string().contains("rows.zrows"), "{error}"))
        .is_ok()
}

#[test]
fn noise_is_no_file_of_rows() {
    let folder = TempDir::new().expect("a folder");
    check!().with_type::<Vec<u8>>().for_each(|noise| {
        assert!(!is_whole(&folder, noise));
        // Behind a start that looks right.
        assert!(!is_whole(&folder, &[&GOOD[1][..16], noise].concat()));
    });
}

#[test]
fn a_file_that_was_changed_anywhere_is_noticed() {
    let folder = TempDir::new().expect("a folder");
    check!().with_type::<(bool, u16, u8, u8)>().for_each(|(newer, place, kind, byte)| {
        let good = GOOD[usize::from(*newer)];
        assert!(is_whole(&folder, good));
        let (place, mut bytes) = (usize::from(*place) % good.len(), good.to_vec());
        match kind % 4 {
            0 => bytes[place] = *byte,
            1 => bytes.truncate(place),
            2 => bytes.insert(place, *byte),
            _ => drop(bytes.remove(place)),
        }
        assert!(bytes == good || !is_whole(&folder, &bytes), "a change at byte {place} went unnoticed");
    });
}
