//! The repository's files.

use std::path::{Path, PathBuf};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the checkout").to_owned()
}

/// Rust files below a folder of the checkout, with their text; built, downloaded and generated folders skipped.
pub fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    files_in(folder, ".rs")
}

/// Files of the checkout whose name ends so, with their text; built, downloaded and generated folders skipped.
pub fn files_that_end_in(ending: &str) -> Vec<(PathBuf, String)> {
    files_in(".", ending)
}

fn files_in(folder: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let root = repository();
    let mut folders = vec![if folder == "." { root } else { root.join(folder) }];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the checkout is readable") {
            let path = entry.expect("an entry is readable").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir()
                && !name.starts_with('.')
                && !["target", "data", "runs", "generated"].contains(&name.as_str())
            {
                folders.push(path);
            } else if name.ends_with(ending) {
                let text = std::fs::read_to_string(&path).expect("a source file is UTF-8");
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "no file {ending} below {folder}");
    found
}
