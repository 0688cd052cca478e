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

    fn job() -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        Job::parse(text, "job.toml".as_ref(), &Overrides::none()).unwrap()
    }

    fn warning(job: &Job) -> Option<String> {
        check_folders(job).err().map(|failure| format!("{failure:?}"))
    }

    #[test]
    fn an_impossible_folder_is_reported_before_training() {
        let mut job = job();
        job.checkpoint.folder = Some("gs://models".to_owned());
        let scheme = warning(&job).expect("refused");
        assert!(scheme.contains("Usage") && scheme.contains("only s3:// and file:// are supported"), "{scheme}");
        let file = tempfile::NamedTempFile::new().unwrap();
        job.checkpoint.folder = Some(file.path().join("below").display().to_string());
        let below = warning(&job).expect("refused");
        assert!(below.contains("Storage") && below.contains("`checkpoint.folder`"), "{below}");
    }

    #[test]
    fn an_unused_folder_is_not_checked() {
        let mut job = job();
        assert_eq!(warning(&job), None);
        job.checkpoint.folder = Some("gs://models".to_owned());
        job.checkpoint.keep = 0;
        assert_eq!(warning(&job), None);
        job.output.model_folder = Some("gs://models".to_owned());
        assert!(warning(&job).is_some_and(|warning| warning.contains("`output.model_folder`")));
        job.output.save_model = false;
        assert_eq!(warning(&job), None);
    }

    #[test]
    fn a_missing_folder_is_made() {
        let (mut job, folder) = (job(), tempfile::tempdir().unwrap());
        let folder = folder.path().join("checkpoints");
        job.checkpoint.folder = Some(folder.display().to_string());
        assert_eq!(warning(&job), None);
        assert!(folder.is_dir());
    }
}
