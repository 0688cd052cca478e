//! Files that a command reads and writes, and checks that checkpoints and the model can be written to the folders of the job.

use std::path::Path;

use zagros_job::Job;
use zagros_plumbing::{disk, durable};
use zagros_store::{Folder, StoreError, StoreFault};

use crate::exit::{Exit, Failure};

/// Writes a file, whole or not at all.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    durable::write(path, content.as_ref()).map_err(|error| Failure::unwritable(path, &error))
}

/// Reads a file that the command line names.
pub fn read_named_file(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display()), disk::next_step(&error)))
}

/// Checks the folders before anything else is done. Otherwise only the first checkpoint, or the end of training, would show
/// that a bucket does not exist or that credentials are wrong.
pub fn check_folders(job: &Job) -> Result<(), Failure> {
    let are_kept = job.checkpoint.keep > 0 || job.output.keep_best > 0;
    let checkpoints = job.checkpoint.folder.as_ref().filter(|_| are_kept);
    let model = job.output.model_folder.as_ref().filter(|_| job.output.save_model);
    for (key, folder) in [("checkpoint.folder", checkpoints), ("output.model_folder", model)] {
        let Some(folder) = folder else { continue };
        // Requests to a store may take as long as the job's timeout.
        let checked = Folder::open(folder, job.cluster.timeout).and_then(|folder| folder.check_writable());
        checked.map_err(|error| failed(error, key))?;
    }
    Ok(())
}

fn failed(error: StoreError, key: &str) -> Failure {
    let exit = match error.fault() {
        StoreFault::Setting => Exit::Usage,
        StoreFault::Away => Exit::Cluster,
        StoreFault::Missing => Exit::Data,
        StoreFault::Machine => Exit::Storage,
    };
    Failure::new(exit, miette::miette!("{error} (`{key}`)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zagros_job::Overrides;

    #[test]
    fn folders_are_made_or_refused_before_training_where_they_are_used() {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        let job = Job::parse(text, "job.toml".as_ref(), &Overrides::none()).unwrap();
        let (file, folder) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
        let (below, missing) = (file.path().join("below"), folder.path().join("checkpoints"));
        let (below, missing) = (below.display().to_string(), missing.display().to_string());
        let other = Some("gs://models");
        for (checkpoints, keep, model, save_model, problems) in [
            (None, 2, None, true, &[][..]),
            (other, 2, None, true, &["Usage", "only s3:// and file:// are supported"]),
            (other, 0, None, true, &[]),
            (Some(below.as_str()), 2, None, true, &["Storage", "`checkpoint.folder`"]),
            (Some(missing.as_str()), 2, None, true, &[]),
            (None, 2, other, true, &["`output.model_folder`"]),
            (None, 2, other, false, &[]),
        ] {
            let mut job = job.clone();
            (job.checkpoint.folder, job.checkpoint.keep) = (checkpoints.map(str::to_owned), keep);
            (job.output.model_folder, job.output.save_model) = (model.map(str::to_owned), save_model);
            let found = check_folders(&job).err().map(|failure| format!("{failure:?}")).unwrap_or_default();
            let has_all = problems.iter().all(|problem| found.contains(problem));
            assert!(has_all && found.is_empty() == problems.is_empty(), "{checkpoints:?} {keep} {model:?}: {found}");
        }
        assert!(Path::new(&missing).is_dir());
    }
}
