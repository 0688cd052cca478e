//! The manifest of a model whose files are replaced by others. Files of rows are replaced by copies without some rows, or, in a copy
//! of the model, by rows of another form.
//!
//! Another file is replaced under the same name. No two files can be replaced at once, so the new content is beside the old one while the
//! manifest changes, and the save is whole at each moment (invariants CK-1, CK-4):
//!
//! ```text
//! 1 NAME.next is written       the manifest knows NAME, which is there
//! 2 manifest.json is replaced  it knows the bytes of NAME.next, which are read for NAME
//! 3 NAME is replaced           it knows NAME again
//! 4 NAME.next is deleted
//! ```

use std::collections::BTreeMap;

use zagros_job::Job;
use zagros_store::{Folder, StoreError};

use crate::calibrators;
use crate::error::ScoringError;
use crate::manifest::{FileRecord, Manifest};
use crate::saved_model::{OPTIMIZER, fingerprint};

#[derive(Clone, Debug)]
pub struct CopiedFiles {
    pub rows: Vec<FileRecord>,
    /// The others, the job among them.
    pub others: Vec<FileRecord>,
}

impl Manifest {
    /// Names of the files of a model beside its rows and its job, of those that this one has. Those of a checkpoint that only a run that
    /// resumes needs are not among them.
    pub fn files_beside_rows(&self, with_optimizer: bool) -> Vec<&FileRecord> {
        let is_of_model =
            |name: &str| name == self.dense || name == calibrators::FILE || (name == OPTIMIZER && with_optimizer);
        self.files.iter().filter(|file| is_of_model(&file.name)).collect()
    }

    /// The manifest of a copy of this model with other files and with the job that these are of, and its text. The copy has no measures:
    /// nothing was scored with it.
    pub fn of_copy(&self, job: &Job, CopiedFiles { rows, others }: CopiedFiles) -> (Self, Vec<u8>) {
        let copy = Self {
            fingerprint: fingerprint(job),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            row_files: rows.iter().map(|file| file.name.clone()).collect(),
            files: rows.into_iter().chain(others).collect(),
            evaluation: None,
            validation: None,
            ..self.clone()
        };
        copy.into_sealed()
    }

    /// This manifest, with other files of rows in the place of some, and `rows` rows in all of them. Returns it with its text,
    /// to be written as [`crate::MANIFEST`].
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
        manifest.into_sealed()
    }
}

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
    pub fn write_next(folder: &Folder, name: &str, content: &[u8]) -> Result<Self, StoreError> {
        folder.write(&next_of(name), content)?;
        Ok(Self::new(name, content))
    }
}

impl Manifest {
    /// Gives a file the content that this manifest knows it by, after [`FileRecord::write_next`], and removes what is left of that. Also
    /// after a process that ended in between.
    pub fn finish_replacement(&self, folder: &Folder, name: &str) -> Result<(), ScoringError> {
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
    use zagros_eval::Evaluation;
    use zagros_fakes::jobs::small_job;

    use super::*;
    use crate::manifest::MANIFEST;

    #[test]
    fn a_replaced_file_is_named_and_vouched_for_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::on_disk(folder.path());
        let files = ["dense", "a.zrows", "b.zrows"].map(|name| FileRecord::new(name, name.as_bytes()));
        let manifest = Manifest {
            row_files: vec!["a.zrows".to_owned(), "b.zrows".to_owned()],
            rows: 9,
            ..Manifest::of_test("dense", files.to_vec())
        };
        let copy = FileRecord::new("c.zrows", b"copy");
        let replaced = BTreeMap::from([("b.zrows".to_owned(), copy.clone())]);
        let (changed, text) = manifest.with_row_files(&replaced, 7);
        disk.write(MANIFEST, &text).unwrap();
        assert_eq!(Manifest::read(&disk).unwrap(), changed);
        assert_eq!((changed.rows, changed.row_files), (7, vec!["a.zrows".to_owned(), "c.zrows".to_owned()]));
        assert_eq!(changed.files, [files[0].clone(), files[1].clone(), copy]);
    }

    #[test]
    fn a_copy_names_its_own_files_and_no_measures_and_nothing_of_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::on_disk(folder.path());
        let names = ["dense", "optimizer.safetensors", "calibration.json", "training.json", "job.toml", "a.zrows"];
        let manifest = Manifest {
            row_files: vec!["a.zrows".to_owned()],
            evaluation: Some(Evaluation::default()),
            ..Manifest::of_test("dense", names.map(|name| FileRecord::new(name, name.as_bytes())).to_vec())
        };
        let beside_rows = manifest.files_beside_rows(true);
        assert_eq!(beside_rows.iter().map(|file| &*file.name).collect::<Vec<_>>(), names[..3]);
        assert_eq!(manifest.files_beside_rows(false).len(), 2);
        let job = small_job();
        let files = CopiedFiles {
            rows: vec![FileRecord::new("b.zrows", b"rows")],
            others: vec![FileRecord::new("dense", b"weights"), FileRecord::new("job.toml", b"job")],
        };
        let (copy, text) = manifest.of_copy(&job, files);
        disk.write(MANIFEST, &text).unwrap();
        assert_eq!(Manifest::read(&disk).unwrap(), copy);
        assert_eq!((copy.row_files, copy.evaluation), (vec!["b.zrows".to_owned()], None));
        assert_eq!((copy.steps, copy.fingerprint), (manifest.steps, format!("{:016x}", job.fingerprint())));
    }

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
            assert_eq!(disk.read("job.toml").unwrap(), new);
            assert!(!disk.has_file("job.toml.next").unwrap());
        }
        // Other bytes are still damage.
        disk.write("job.toml", old).unwrap();
        disk.write("job.toml.next", b"text of a third one").unwrap();
        assert!(Manifest::read(&disk).unwrap().read_file(&disk, "job.toml").is_err());
    }
}
