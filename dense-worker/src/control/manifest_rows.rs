//! The manifest of a model whose files of rows are replaced by copies without some rows.

use std::collections::BTreeMap;

use super::manifest::{FileRecord, Manifest};

impl Manifest {
    /// This manifest, with other files of rows in the place of some, and `rows` rows in all of them. Returns it with its text,
    /// to be written as [`super::manifest::MANIFEST`].
    #[must_use]
    pub fn with_row_files(&self, replaced: &BTreeMap<String, FileRecord>, rows: u64) -> (Self, Vec<u8>) {
        let mut manifest = self.clone();
        manifest.rows = rows;
        for name in &mut manifest.row_files {
            if let Some(by) = replaced.get(name) {
                name.clone_from(&by.name);
            }
        }
        for file in &mut manifest.files {
            if let Some(by) = replaced.get(&file.name) {
                file.clone_from(by);
            }
        }
        manifest.sealed()
    }
}

#[cfg(test)]
mod tests {
    use zagros_store::Folder;

    use super::*;
    use crate::control::manifest::MANIFEST;

    #[test]
    fn a_replaced_file_is_named_and_vouched_for_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        let files = ["dense", "a.zrows", "b.zrows"].map(|name| FileRecord::of(name, name.as_bytes()));
        let manifest = Manifest {
            row_files: vec!["a.zrows".to_owned(), "b.zrows".to_owned()],
            rows: 9,
            ..Manifest::of_test("dense", files.to_vec())
        };
        let copy = FileRecord::of("c.zrows", b"copy");
        let replaced = BTreeMap::from([("b.zrows".to_owned(), copy.clone())]);
        let (changed, text) = manifest.with_row_files(&replaced, 7);
        disk.write(MANIFEST, &text).unwrap();
        assert_eq!(Manifest::read(&disk).unwrap(), changed);
        assert_eq!((changed.rows, changed.row_files), (7, vec!["a.zrows".to_owned(), "c.zrows".to_owned()]));
        assert_eq!(changed.files, [files[0].clone(), files[1].clone(), copy]);
    }
}
