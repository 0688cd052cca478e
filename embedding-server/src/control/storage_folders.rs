//! The folders in which a server writes and reads rows at the request of another process.

use zagros_job::Job;
use zagros_protocol::Refusal;
use zagros_store::{AllowedFolders, StoreError};

/// The folders that the job names, and the folders that `--storage-folder` adds. Without this check a process that may ask a
/// server to save could make it write to any folder, or send rows to any bucket with the server's credentials.
#[derive(Debug)]
pub(crate) struct StorageFolders(AllowedFolders);

impl StorageFolders {
    /// The folders of a job, and more.
    ///
    /// # Errors
    /// When the text of one names no folder.
    pub(crate) fn new(job: &Job, more: &[String]) -> Result<Self, StoreError> {
        let runs = job.output.folder.display().to_string();
        let named = [Some(runs), job.output.model_folder.clone(), job.checkpoint.folder.clone()];
        Ok(Self(AllowedFolders::new(named.into_iter().flatten().chain(more.iter().cloned()))?))
    }

    /// Refuses other folders.
    ///
    /// # Errors
    /// `Invalid`, with the folder and the list of those that are allowed.
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
        let allowed = StorageFolders::new(&job, &[path("added")]).unwrap();
        for inside in [path("runs/a/model"), "s3://models/ads/run-1/model".to_owned(), path("added/b")] {
            assert_eq!(allowed.check(&inside), Ok(()));
        }
        let refused = allowed.check("s3://other/ads").unwrap_err();
        assert!(refused.message.contains(&path("runs")) && refused.message.contains("--storage-folder"), "{refused}");
        job.checkpoint.folder = Some("s3://other".to_owned());
        assert_eq!(StorageFolders::new(&job, &[]).unwrap().check("s3://other/ads"), Ok(()));
    }
}
