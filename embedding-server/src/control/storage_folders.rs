//! The folders where a server writes and reads rows for other processes.

use zagros_job::Job;
use zagros_protocol::Refusal;
use zagros_store::{AllowedFolders, StoreError};

/// The folders in the job, and the folders of `--storage-folder`. Without this check, a process that may ask for a save
/// could make the server write to any folder, or send rows to any bucket with the server's credentials.
#[derive(Debug)]
pub(crate) struct StorageFolders(AllowedFolders);

impl StorageFolders {
    /// The folders of a job, and the folders in `more`.
    ///
    /// # Errors
    /// If a text is not a folder.
    pub(crate) fn new(job: &Job, more: &[String]) -> Result<Self, StoreError> {
        let runs = job.output.folder.display().to_string();
        let named = [Some(runs), job.output.model_folder.clone(), job.checkpoint.folder.clone()];
        Ok(Self(AllowedFolders::new(named.into_iter().flatten().chain(more.iter().cloned()))?))
    }

    /// Refuses all other folders.
    ///
    /// # Errors
    /// `Invalid`, with the folder and the list of allowed folders.
    pub(crate) fn check(&self, folder: &str) -> Result<(), Refusal> {
        self.0.check(folder).map_err(|outside| {
            let help = "allowed are `output.folder`, `output.model_folder` and `checkpoint.folder` of the job, and the folders of \
                        `--storage-folder` of the embedding server; check that all roles use the same job file";
            Refusal::invalid(format!("{outside}; {help}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;

    #[test]
    fn the_folders_of_the_job_and_added_folders_are_allowed() {
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
