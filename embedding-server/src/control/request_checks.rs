//! The folders where a server writes and reads rows for other processes.
//!
//! Checks that a request over a socket belongs to the run that the server has joined.

use std::sync::OnceLock;

use http::HeaderMap;
use zagros_job::Job;
use zagros_protocol::{Refusal, RefusalKind, RunId, ServerIndex};
use zagros_store::{AllowedFolders, FileName, FolderNotAllowed, StoreError};
use zagros_transport::{check_run, check_server};

/// Without this check, a process that may ask for a save could make the server write to any folder, or send rows to any bucket
/// with the server's credentials.
#[derive(Debug)]
pub(crate) struct StorageFolders(AllowedFolders);

impl StorageFolders {
    pub(crate) fn new(job: &Job, more: &[String]) -> Result<Self, StoreError> {
        let named = [
            ("output.folder", Some(job.output.folder.display().to_string())),
            ("output.model_folder", job.output.model_folder.clone()),
            ("checkpoint.folder", job.checkpoint.folder.clone()),
            ("train.start_from", job.train.start_from.clone()),
        ];
        let of_job = named.into_iter().filter_map(|(key, folder)| Some((format!("`{key}`"), folder?)));
        let added = more.iter().map(|folder| ("`--storage-folder`".to_owned(), folder.clone()));
        Ok(Self(AllowedFolders::new(of_job.chain(added))?))
    }

    /// Refuses folders that neither the job nor `--storage-folder` names.
    pub(crate) fn check_folder(&self, folder: &str) -> Result<(), Refusal> {
        self.0.check_folder(folder).map_err(|outside| folder_refusal(&outside))
    }

    /// Refuses files of `folder`, or of a folder beside it, that are outside of all allowed folders, also by a link. Any other
    /// path is refused where the file is opened.
    pub(crate) fn check_files<'a>(
        &self,
        folder: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        let mut names = names.into_iter().filter_map(FileName::parse);
        names.try_for_each(|name| self.0.check_file(folder, name)).map_err(|outside| folder_refusal(&outside))
    }
}

fn folder_refusal(outside: &FolderNotAllowed) -> Refusal {
    let help = "give all roles the same job file, or start the embedding server with `--storage-folder FOLDER`";
    Refusal::invalid(format!("{outside}; {help}"))
}

/// Accepts requests of one run. A server that is called inside its process needs no check.
#[derive(Debug)]
pub(crate) struct RunCheck {
    name: String,
    /// The run, and the instance of this process.
    joined: OnceLock<(RunId, u64)>,
}

impl RunCheck {
    pub(crate) fn new(server: ServerIndex) -> Self {
        Self { name: format!("embedding server {server}"), joined: OnceLock::new() }
    }

    /// Records the run and the instance. A server joins one run only.
    pub(crate) fn note_joined(&self, run: RunId, instance: u64) {
        let _ = self.joined.set((run, instance));
    }

    /// Refuses a request of another run or for another process, before its message is read (invariant MB-2).
    /// Before the server has joined, the refusal is `Unavailable`.
    pub(crate) fn check_request(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some((run, instance)) = self.joined.get() else {
            let message = format!("{} has not joined a run yet; it waits for the coordinator", self.name);
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        };
        check_run(*run, headers, &self.name)?;
        check_server(*instance, headers, &self.name)
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
            assert_eq!(allowed.check_folder(&inside), Ok(()));
        }
        let refused = allowed.check_folder("s3://other/ads").unwrap_err();
        for named in [format!("{} (`output.folder`)", path("runs")), format!("{} (`--storage-folder`)", path("added"))]
        {
            assert!(refused.message.contains(&named), "{refused}");
        }
        job.checkpoint.folder = Some("s3://other".to_owned());
        assert_eq!(StorageFolders::new(&job, &[]).unwrap().check_folder("s3://other/ads"), Ok(()));
    }

    #[test]
    fn a_file_that_is_a_link_out_of_the_folders_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job(1);
        job.output.folder = folder.path().join("runs");
        std::fs::create_dir_all(job.output.folder.join("model")).unwrap();
        std::fs::write(folder.path().join("private"), "rows of another user").unwrap();
        let model = job.output.folder.join("model");
        std::fs::write(model.join("good.zrows"), "rows").unwrap();
        std::os::unix::fs::symlink(folder.path().join("private"), model.join("link.zrows")).unwrap();
        let (allowed, model) = (StorageFolders::new(&job, &[]).unwrap(), model.display().to_string());
        assert_eq!(allowed.check_files(&model, ["good.zrows", "not yet there"]), Ok(()));
        let refused = allowed.check_files(&model, ["good.zrows", "link.zrows"]).unwrap_err().message;
        assert!(refused.contains("link.zrows") && refused.contains("output.folder"), "{refused}");
        assert!(FileName::parse("../../private").is_none(), "it is refused where the file is opened");
        let runs = job.output.folder.display().to_string();
        assert_eq!(allowed.check_files(&model, ["../other/rows.zrows"]), Ok(()));
        assert!(allowed.check_files(&runs, ["../other/rows.zrows"]).unwrap_err().message.contains("outside"));
    }
}
