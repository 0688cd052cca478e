//! Where a server writes and reads rows at the request of another process.

use zagros_job::Job;
use zagros_protocol::Refusal;
use zagros_store::{Roots, StoreError};

/// The folders that the job names, and those that whoever started the server has allowed besides. Whoever may ask a server
/// to save would else have it write to any folder, or send rows to any bucket with its credentials.
#[derive(Debug)]
pub(crate) struct StorageRoots(Roots);

impl StorageRoots {
    /// Those of a job, and more.
    ///
    /// # Errors
    /// When one is no folder.
    pub(crate) fn new(job: &Job, more: &[String]) -> Result<Self, StoreError> {
        let runs = job.output.folder.display().to_string();
        let named = [Some(runs), job.output.model_folder.clone(), job.checkpoint.folder.clone()];
        Ok(Self(Roots::new(named.into_iter().flatten().chain(more.iter().cloned()))?))
    }

    /// Refuses folders elsewhere.
    ///
    /// # Errors
    /// `Invalid`, by the folder and those that are allowed.
    pub(crate) fn check(&self, folder: &str) -> Result<(), Refusal> {
        self.0.check(folder).map_err(|outside| {
            let help = "they are `output.folder`, `output.model_folder` and `checkpoint.folder` of the job, and what \
                        `--storage-folder` of the embedding server adds; is it the same place for all roles?";
            Refusal::invalid(format!("{outside}; {help}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;

    #[test]
    fn the_folders_of_the_job_are_allowed_and_those_that_were_added() {
        let mut job = job(1);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        job.output.folder = path("runs").into();
        job.output.model_folder = Some("s3://models/ads".to_owned());
        let roots = StorageRoots::new(&job, &[path("elsewhere")]).unwrap();
        for inside in [path("runs/a/model"), "s3://models/ads/run-1/model".to_owned(), path("elsewhere/b")] {
            assert_eq!(roots.check(&inside), Ok(()));
        }
        let refused = roots.check("s3://other/ads").unwrap_err();
        assert!(refused.message.contains(&path("runs")) && refused.message.contains("--storage-folder"), "{refused}");
        job.checkpoint.folder = Some("s3://other".to_owned());
        assert_eq!(StorageRoots::new(&job, &[]).unwrap().check("s3://other/ads"), Ok(()));
    }
}
