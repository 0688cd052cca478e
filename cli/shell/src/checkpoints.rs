//! Whether checkpoints can be written where the job wants them.

use zagros_job::Job;
use zagros_store::{Fault, Folder, StoreError};

use crate::exit::{Exit, Failure};

/// That checkpoints can be written where the job wants them, before anything else is done: a bucket that is not there
/// or credentials that are wrong would be noticed only by the first checkpoint.
///
/// # Errors
/// What is wrong, where, and what to do.
pub fn check_checkpoints(job: &Job) -> Result<(), Failure> {
    let are_written = job.checkpoint.keep > 0 || job.output.keep_best > 0;
    let Some(folder) = job.checkpoint.folder.as_ref().filter(|_| are_written) else { return Ok(()) };
    // Requests to a store take as long as the job is patient.
    Folder::open(folder, job.cluster.patience).and_then(|folder| folder.check()).map_err(failed)
}

fn failed(error: StoreError) -> Failure {
    let exit = match error.fault() {
        Fault::Setting => Exit::Usage,
        Fault::Away => Exit::Cluster,
        Fault::Missing | Fault::Machine => Exit::Data,
    };
    Failure::new(exit, miette::miette!("{error} (`checkpoint.folder`)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zagros_job::Overrides;

    fn job() -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        Job::parse(text, "job.toml".as_ref(), &Overrides::none()).unwrap()
    }

    fn told(job: &Job) -> Option<String> {
        check_checkpoints(job).err().map(|failure| format!("{failure:?}"))
    }

    #[test]
    fn a_folder_that_cannot_be_is_told_before_training() {
        let mut job = job();
        job.checkpoint.folder = Some("gs://models".to_owned());
        let scheme = told(&job).expect("refused");
        assert!(scheme.contains("Usage") && scheme.contains("only s3:// and file:// are known"), "{scheme}");
        let file = tempfile::NamedTempFile::new().unwrap();
        job.checkpoint.folder = Some(file.path().join("below").display().to_string());
        let below = told(&job).expect("refused");
        assert!(below.contains("Data") && below.contains("`checkpoint.folder`"), "{below}");
    }

    #[test]
    fn a_folder_that_nothing_is_written_to_is_not_looked_at() {
        let mut job = job();
        assert_eq!(told(&job), None);
        job.checkpoint.folder = Some("gs://models".to_owned());
        job.checkpoint.keep = 0;
        assert_eq!(told(&job), None);
    }

    #[test]
    fn a_folder_that_is_not_there_is_made() {
        let (mut job, folder) = (job(), tempfile::tempdir().unwrap());
        let folder = folder.path().join("checkpoints");
        job.checkpoint.folder = Some(folder.display().to_string());
        assert_eq!(told(&job), None);
        assert!(folder.is_dir());
    }
}
