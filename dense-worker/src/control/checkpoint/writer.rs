//! The writer of checkpoints: when one is due by time, and the one that is being written.
//!
//! What fails here fails the checkpoint, never training: the last good one stays, and everyone hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;
use tracing::warn;
use zagros_job::{CheckpointSettings, Job};
use zagros_store::Folder;

use super::position::FileSize;
use crate::control::save::prepare_folder;
use crate::error::WorkerError;

#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    pub(crate) rule: CheckpointSettings,
    /// Parent of the checkpoints; none are made without one.
    pub(crate) folder: Option<Folder>,
    pub(crate) files: Vec<FileSize>,
    pub(crate) last: Instant,
    pub(crate) under_way: Option<AbortOnDropHandle<Result<(), WorkerError>>>,
    /// Step of the newest that is complete; 0 before the first. The task that writes a checkpoint sets it at once.
    pub(crate) complete: Arc<AtomicU64>,
}

impl CheckpointWriter {
    pub(crate) fn new(job: &Job, folder: Option<Folder>, files: Vec<FileSize>) -> Self {
        Self {
            rule: job.checkpoint.clone(),
            folder: folder.filter(|_| job.checkpoint.keep > 0),
            files,
            last: Instant::now(),
            under_way: None,
            complete: Arc::default(),
        }
    }

    pub(crate) fn every_steps(&self) -> Option<u64> {
        self.rule.every_steps.filter(|_| self.folder.is_some())
    }

    /// Whether the last is as long ago as the job wants checkpoints apart.
    pub(crate) fn is_due_by_time(&self) -> bool {
        self.folder.is_some() && self.rule.every.is_some_and(|every| self.last.elapsed() >= every)
    }

    pub(crate) fn newest_step(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }

    pub(crate) fn resumed_at(&mut self, step: u64) {
        self.complete.store(step, Ordering::Release);
    }

    /// Makes the folder of a checkpoint. A disk is looked at for an older manifest; a store, which may take its time while
    /// training stands still, is asked only where one is known to be.
    pub(crate) async fn prepare_folder(&self, folder: Folder, step: u64) -> Result<Folder, WorkerError> {
        if folder.path().is_none() && step != self.newest_step() {
            return Ok(folder);
        }
        prepare_folder(folder).await
    }

    /// Takes note of a checkpoint that is written now, and says whether none is being written.
    pub(crate) async fn is_free(&mut self) -> bool {
        if self.under_way.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            self.finish_writing().await;
        }
        self.under_way.is_none()
    }

    /// Waits for the one that is being written. Each of its calls has a deadline.
    pub(crate) async fn finish_writing(&mut self) {
        let Some(writing) = self.under_way.take() else { return };
        match writing.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, newest = self.newest_step(), "no checkpoint was written; training goes on"),
            Err(error) => warn!(%error, newest = self.newest_step(), "writing a checkpoint ended; training goes on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::folder_of;
    use super::*;
    use crate::testing::small_job;

    fn writer(every_steps: Option<u64>, keep: usize) -> CheckpointWriter {
        let mut job = small_job();
        (job.checkpoint.every_steps, job.checkpoint.keep) = (every_steps, keep);
        CheckpointWriter::new(&job, Some(Folder::on_disk("checkpoints")), Vec::new())
    }

    #[test]
    fn only_a_worker_that_writes_checkpoints_says_when_one_is_due() {
        assert_eq!(writer(Some(3), 1).every_steps(), Some(3));
        assert_eq!((writer(None, 1).every_steps(), writer(Some(3), 0).every_steps()), (None, None));
        let mut timed = writer(None, 1);
        assert!(!timed.is_due_by_time());
        timed.rule.every = Some(Duration::ZERO);
        assert!(timed.is_due_by_time());
    }

    /// A store may take its time, and training stands still meanwhile.
    #[tokio::test]
    async fn a_store_is_asked_for_an_older_manifest_only_where_one_is() {
        let store = zagros_fakes::s3::FakeS3::start("models");
        let open =
            || Folder::open_in(&store.environment_variables(), "s3://models/run", Duration::from_secs(20)).unwrap();
        store.put_object("run/resume-000000000005/manifest.json", "{}");
        let mut writer = writer(Some(5), 1);
        writer.prepare_folder(folder_of(&open(), 10), 10).await.unwrap();
        assert_eq!(store.request_log(), [""; 0]);
        writer.resumed_at(5);
        writer.prepare_folder(folder_of(&open(), 5), 5).await.unwrap();
        assert_eq!((store.object_keys(), writer.newest_step()), (Vec::new(), 5));
    }
}
