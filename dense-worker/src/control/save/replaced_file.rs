//! A file of a save that another one replaces under the same name. No two files can be replaced at once, so the new content is beside the
//! old one while the manifest changes, and the save is whole at each moment (invariants CK-1, CK-4):
//!
//! ```text
//! 1 NAME.next is written       the manifest knows NAME, which is there
//! 2 manifest.json is replaced  it knows the bytes of NAME.next, which are read for NAME
//! 3 NAME is replaced           it knows NAME again
//! 4 NAME.next is deleted
//! ```

use zagros_store::{Folder, StoreError};

use super::manifest::{FileRecord, Manifest};
use crate::error::WorkerError;

/// Ending of the name of a content that is to take a file's place.
const NEXT: &str = ".next";

fn next_of(name: &str) -> String {
    format!("{name}{NEXT}")
}

impl FileRecord {
    /// What is to take the file's place, if it is what this record knows.
    pub(crate) fn next_content(&self, folder: &Folder) -> Option<Vec<u8>> {
        let content = folder.read_at_most(&next_of(&self.name), self.bytes).ok()?;
        (Self::new(&self.name, &content) == *self).then_some(content)
    }

    /// Writes a content that is to take the place of a file, and returns what the manifest must know it by. Then the manifest is to be
    /// replaced, and [`Manifest::finish_replacement`] to be called.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_next(folder: &Folder, name: &str, content: &[u8]) -> Result<Self, StoreError> {
        folder.write(&next_of(name), content)?;
        Ok(Self::new(name, content))
    }
}

impl Manifest {
    /// Gives a file the content that this manifest knows it by, after [`FileRecord::write_next`], and removes what is left of that. Also
    /// after a process that ended in between.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish_replacement(&self, folder: &Folder, name: &str) -> Result<(), WorkerError> {
        if !folder.has_file(&next_of(name))? {
            return Ok(());
        }
        let content = self.read_file(folder, name)?;
        folder.write(name, &content)?;
        Ok(folder.delete_file(&next_of(name))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::save::manifest::MANIFEST;

    fn manifest(content: &[u8]) -> Manifest {
        let files = vec![FileRecord::new("dense", b"weights"), FileRecord::new("job.toml", content)];
        Manifest::of_test("dense", files).into_sealed().0
    }

    /// A process that ends after any of the steps leaves a save that reads as the one before or the one after.
    #[test]
    fn a_save_is_whole_after_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::on_disk(folder.path());
        let (old, new) = (&b"the long old text"[..], &b"new text"[..]);
        disk.write("dense", b"weights").unwrap();
        disk.write("job.toml", old).unwrap();
        let write = |manifest: Manifest| disk.write(MANIFEST, &manifest.into_sealed().1).unwrap();
        let is_whole = |content: &[u8]| {
            let manifest = Manifest::read(&disk).unwrap();
            manifest.check_files(&disk).unwrap();
            assert_eq!(manifest.read_file(&disk, "job.toml").unwrap(), content);
        };
        write(manifest(old));
        let record = FileRecord::write_next(&disk, "job.toml", new).unwrap();
        is_whole(old);
        assert!(manifest(new).files.contains(&record));
        write(manifest(new));
        is_whole(new);
        assert_eq!(disk.read("job.toml").unwrap(), old);
        for _ in 0..2 {
            Manifest::read(&disk).unwrap().finish_replacement(&disk, "job.toml").unwrap();
            is_whole(new);
            assert_eq!(
                (disk.read("job.toml").unwrap(), disk.has_file("job.toml.next").unwrap()),
                (new.to_vec(), false)
            );
        }
        // Other bytes are still damage.
        disk.write("job.toml", old).unwrap();
        disk.write("job.toml.next", b"text of a third one").unwrap();
        assert!(Manifest::read(&disk).unwrap().read_file(&disk, "job.toml").is_err());
    }
}
