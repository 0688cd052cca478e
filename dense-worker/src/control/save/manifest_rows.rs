//! The manifest of a model whose files of rows are replaced by others: by copies without some rows, or, in a copy of the model, by rows
//! of another form.

use std::collections::BTreeMap;

use zagros_job::Job;

use super::calibrators;
use super::manifest::{FileRecord, Manifest};
use super::saved_model::{OPTIMIZER, fingerprint};

#[derive(Clone, Debug)]
pub struct CopiedFiles {
    pub rows: Vec<FileRecord>,
    /// The others, the job among them.
    pub others: Vec<FileRecord>,
}

impl Manifest {
    /// Names of the files of a model beside its rows and its job, of those that this one has. Those of a checkpoint that only a run that
    /// resumes needs are not among them.
    #[must_use]
    pub fn files_beside_rows(&self, with_optimizer: bool) -> Vec<&FileRecord> {
        let is_of_model =
            |name: &str| name == self.dense || name == calibrators::FILE || (name == OPTIMIZER && with_optimizer);
        self.files.iter().filter(|file| is_of_model(&file.name)).collect()
    }

    /// The manifest of a copy of this model with other files and with the job that these are of, and its text. The copy has no measures:
    /// nothing was scored with it.
    #[must_use]
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
        manifest.into_sealed()
    }
}

#[cfg(test)]
mod tests {
    use zagros_store::Folder;

    use super::*;
    use crate::control::save::manifest::MANIFEST;
    use crate::event::Evaluation;
    use crate::testing::job;

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
        let file_names = |with: bool| -> Vec<String> {
            manifest.files_beside_rows(with).iter().map(|file| file.name.clone()).collect()
        };
        assert_eq!(
            (file_names(true), file_names(false).len()),
            (names[..3].iter().map(ToString::to_string).collect(), 2)
        );
        let job = job(1, &[2], zagros_job::Model::Ffnn { hidden: vec![], dropout: 0.0 });
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
}
