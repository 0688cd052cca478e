//! Cutting a checkpoint: training stands still until it is settled which rows are in it, and goes on while they are
//! written.
//!
//! What fails here fails the checkpoint, never training: the last good one stays, and everyone is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;
use zagros_embedding_client::Shard;
use zagros_job::Job;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{Position, PositionRequest, SaveStage};
use zagros_store::{Folder, StoreError};

use super::point::{OPTIMIZER, TRAINING, all, complete, folder_of};
use super::training::{FORMAT, FileSize, Reader, Training};
use crate::control::blocking::blocking;
use crate::control::manifest::MANIFEST;
use crate::control::peers::Peers;
use crate::control::saved_model::{self, Trained, Written};
use crate::control::splits::control_error;
use crate::control::train::Trainer;
use crate::datapath::dense::Dense;
use crate::error::WorkerError;
use crate::event::Event;
use crate::progress::Overall;
use crate::report::files::to_json;
use crate::summary::Outcome;

/// When checkpoints are due, and the one that is being written.
#[derive(Debug)]
pub(crate) struct Cutter {
    every: Option<Duration>,
    every_steps: Option<u64>,
    keep: usize,
    /// Parent of the checkpoints; none are made without one.
    folder: Option<Folder>,
    files: Vec<FileSize>,
    last: Instant,
    under_way: Option<AbortOnDropHandle<Result<(), WorkerError>>>,
    /// Step of the newest that is complete; 0 before the first. Whoever writes one says so at once.
    complete: Arc<AtomicU64>,
}

impl Cutter {
    /// As the job wants it, below `folder`, of training on `files`.
    pub(crate) fn new(job: &Job, folder: Option<Folder>, files: Vec<FileSize>) -> Self {
        let rule = &job.checkpoint;
        Self {
            every: rule.every,
            every_steps: rule.every_steps,
            keep: rule.keep,
            folder: folder.filter(|_| rule.keep > 0),
            files,
            last: Instant::now(),
            under_way: None,
            complete: Arc::default(),
        }
    }

    /// Whether a checkpoint is to be cut after this step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        let by_steps = self.every_steps.is_some_and(|every| step.is_multiple_of(every));
        self.folder.is_some() && by_steps || self.is_due_by_time()
    }

    /// Whether the last is as long ago as the job wants checkpoints apart.
    pub(crate) fn is_due_by_time(&self) -> bool {
        self.folder.is_some() && self.every.is_some_and(|every| self.last.elapsed() >= every)
    }

    /// Step of the newest checkpoint that is complete; 0 before the first.
    pub(crate) fn newest(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }

    /// Training goes on from the checkpoint of this step.
    pub(crate) fn resumed_at(&mut self, step: u64) {
        self.complete.store(step, Ordering::Release);
    }

    /// Makes the folder of a checkpoint. A disk is looked at for an older manifest; a store, which may take its time while
    /// training stands still, is asked only where one is known to be.
    async fn prepare(&self, folder: Folder, step: u64) -> Result<Folder, WorkerError> {
        if folder.path().is_none() && step != self.newest() {
            return Ok(folder);
        }
        saved_model::prepare(folder).await
    }

    /// Takes note of a checkpoint that is written now, and says whether none is being written.
    async fn is_free(&mut self) -> bool {
        if self.under_way.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            self.settle().await;
        }
        self.under_way.is_none()
    }

    /// Waits for the one that is being written. Each of its calls has a deadline.
    pub(crate) async fn settle(&mut self) {
        let Some(writing) = self.under_way.take() else { return };
        match writing.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, newest = self.newest(), "no checkpoint was written; training goes on"),
            Err(error) => warn!(%error, newest = self.newest(), "writing a checkpoint ended; training goes on"),
        }
    }
}

impl Trainer {
    /// Cuts a checkpoint of this very moment, all workers together. The caller holds a place in the window, so that
    /// in mode `sync` no batch is looked up meanwhile.
    ///
    /// # Errors
    /// When training itself cannot go on: a push fails, or another worker is lost.
    pub(crate) async fn cut(&mut self, epoch: u32) -> Result<(), WorkerError> {
        if self.job.checkpoint.keep == 0 {
            return Ok(());
        }
        self.drain(epoch).await?;
        let mine = (self.reader(), self.tracker.overall().clone());
        let workers = self.dense.call(move |dense| dense.all_say(&mine)).await??;
        if self.peers.is_none_or(Peers::leads)
            && let Err(error) = self.lead_cut(epoch, workers).await
        {
            self.metrics.checkpoint_failures.inc();
            let step = self.tracker.steps_of_all();
            warn!(%error, step, newest = self.cutter.newest(), "no checkpoint was cut; training goes on");
        }
        // Only now may anyone push again.
        if self.peers.is_some() {
            self.dense.call(Dense::barrier).await??;
        }
        Ok(())
    }

    /// After the last step: cuts once more where training is to go on another day, and waits for what is being written.
    ///
    /// # Errors
    /// As [`Self::cut`].
    pub(crate) async fn last_cut(&mut self, epoch: u32) -> Result<(), WorkerError> {
        self.part().await?;
        self.cutter.settle().await;
        self.cut(epoch).await?;
        self.cutter.settle().await;
        Ok(())
    }

    /// A run whose model and summary are written needs no checkpoint any more, and where it saves no model no kept
    /// state either.
    pub(crate) async fn delete_checkpoints(&mut self) {
        self.cutter.settle().await;
        if let Err(error) = self.try_delete_checkpoints().await {
            warn!(%error, "old checkpoints are still there");
        }
    }

    async fn try_delete_checkpoints(&mut self) -> Result<(), WorkerError> {
        if let Some(folder) = self.cutter.folder.clone() {
            blocking("checkpoints", move || delete_all(&folder)).await??;
        }
        if self.job.output.save_model { Ok(()) } else { self.model.delete_states().await }
    }

    /// Where this worker is in its stream.
    fn reader(&self) -> Reader {
        let (order, next_seq) = (self.stream.order, self.next_seq);
        Reader { rest: self.stream.rest(), order, next_seq }
    }

    async fn lead_cut(&mut self, epoch: u32, workers: Vec<(Reader, Overall)>) -> Result<(), WorkerError> {
        self.cutter.last = Instant::now();
        let Some(checkpoints) = self.cutter.folder.clone() else { return Ok(()) };
        if !self.cutter.is_free().await {
            let newest = self.cutter.newest();
            warn!(newest, "the checkpoint before is still being written; this one is skipped");
            return Ok(());
        }
        let started = Instant::now();
        let step = self.tracker.steps_of_all();
        let folder = self.cutter.prepare(folder_of(&checkpoints, step), step).await?;
        let training = self.training(epoch, workers).await?;
        // All gradients are in the rows now.
        self.pull_weights().await?;
        let parts = self
            .dense
            .call(|dense| Ok::<_, WorkerError>((dense.model.to_safetensors()?, dense.model.optimizer_state()?)));
        let (weights, optimizer) = parts.await??;
        let servers = self.client.servers();
        let cut = servers.iter().map(|server| saved_model::save_rows(server, &folder, SaveStage::Capture));
        try_join_all(cut).await?;
        let pause = started.elapsed();
        self.metrics.checkpoint_pause_seconds.observe(pause.as_secs_f64());
        let writing = Writing {
            job: Arc::clone(&self.job),
            step,
            samples: self.tracker.samples_of_all(),
            checkpoints,
            folder,
            weights,
            optimizer,
            training,
            servers,
            keep: self.cutter.keep,
        };
        let (observer, metrics) = (Arc::clone(&self.observer), self.metrics.clone());
        let (complete, membership) = (Arc::clone(&self.cutter.complete), Arc::clone(&self.membership));
        let written = tokio::spawn(async move {
            match writing.write().await {
                Ok(rows) => {
                    metrics.checkpoint_written(step);
                    complete.store(step, Ordering::Release);
                    membership.update_progress(|progress| progress.checkpoint_step = step);
                    let seconds = started.elapsed().as_secs_f64();
                    observer.on(&Event::Checkpoint { step, rows, pause_seconds: pause.as_secs_f64(), seconds });
                    Ok(())
                }
                Err(error) => {
                    metrics.checkpoint_failures.inc();
                    Err(error)
                }
            }
        });
        self.cutter.under_way = Some(AbortOnDropHandle::new(written));
        Ok(())
    }

    async fn training(&self, epoch: u32, workers: Vec<(Reader, Overall)>) -> Result<Training, WorkerError> {
        let (readers, measures) = workers.into_iter().unzip();
        let known = Training { epoch, readers, measures, ..self.as_training() };
        Ok(known.placed_at(&self.position(epoch).await?))
    }

    /// What this worker knows of training, without where the data is.
    pub(crate) fn as_training(&self) -> Training {
        Training {
            format: FORMAT,
            tracker: self.tracker.state(),
            epoch: self.epoch,
            files: self.cutter.files.clone(),
            plan: Vec::new(),
            done: Vec::new(),
            bad_rows: self.completer.bad_rows(),
            readers: Vec::new(),
            measures: Vec::new(),
            evaluated: self.evaluated,
            of_epochs: self.of_epochs.clone(),
            choice: self.model.state(),
        }
    }

    /// Which splits are complete, by the coordinator.
    async fn position(&self, epoch: u32) -> Result<Position, WorkerError> {
        let request = PositionRequest { member: self.splits.member, incarnation: self.splits.incarnation, epoch };
        let deadline = Deadline::after(self.job.cluster.timeout);
        let answer = tokio::time::timeout(deadline.left(), self.splits.control.position(request)).await;
        let refusal = match answer {
            Ok(Ok(answer)) => return Ok(answer.position.unwrap_or_default()),
            Ok(Err(refusal)) => refusal,
            Err(_) => zagros_protocol::Refusal::no_answer(deadline.waited()),
        };
        Err(control_error(&*self.splits.control, "tell the position", deadline, refusal))
    }
}

/// A checkpoint that is settled and not yet on disk.
struct Writing {
    job: Arc<Job>,
    step: u64,
    samples: u64,
    checkpoints: Folder,
    folder: Folder,
    weights: Vec<u8>,
    optimizer: Vec<u8>,
    training: Training,
    servers: Vec<Arc<dyn Shard>>,
    keep: usize,
}

impl Writing {
    /// Everything, the manifest last (invariant CK-1); then lets go of the oldest. Answers how many rows.
    async fn write(self) -> Result<u64, WorkerError> {
        let Self { job, step, samples, checkpoints, folder, weights, optimizer, training, servers, keep } = self;
        let saved = servers.iter().map(|server| saved_model::save_rows(server, &folder, SaveStage::Files));
        let saved = try_join_all(saved).await?;
        let own = vec![(saved_model::DENSE, weights), (OPTIMIZER, optimizer), (TRAINING, to_json(&training))];
        let outcome = Outcome::Interrupted;
        let trained = Trained { job: &job, outcome, steps: step, samples, evaluation: None, validation: None };
        let manifest = saved_model::conclude(&folder, trained, Written { own, saved }).await?;
        let retained = blocking("checkpoints", move || retain(&checkpoints, keep, step)).await;
        if let Err(error) = retained.and_then(|retained| Ok(retained?)) {
            // The new one is there all the same.
            warn!(%error, step, "older checkpoints are still there");
        }
        Ok(manifest.rows)
    }
}

/// Deletes all but those of the last steps up to the `newest`, each manifest first: half a folder is no checkpoint.
/// Called when none is being written, so one without a manifest is what an earlier process left. One of a later step is
/// damaged, or of training that was given up: it would be in the way of the newest for good.
fn retain(checkpoints: &Folder, keep: usize, newest: u64) -> Result<(), StoreError> {
    let mut complete = complete(checkpoints)?;
    complete.retain(|(step, _)| *step <= newest);
    let kept = &complete[complete.len().saturating_sub(keep)..];
    for (step, folder) in all(checkpoints)? {
        if kept.iter().all(|(kept, _)| *kept != step) {
            folder.delete_file(MANIFEST)?;
            folder.delete()?;
        }
    }
    Ok(())
}

/// Deletes every checkpoint.
pub(super) fn delete_all(checkpoints: &Folder) -> Result<(), StoreError> {
    retain(checkpoints, 0, u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::job;
    use zagros_job::Model;

    fn cutter(every_steps: Option<u64>, keep: usize) -> Cutter {
        let mut job = job(1, &[2], Model::Ffnn { hidden: vec![], dropout: 0.0 });
        (job.checkpoint.every_steps, job.checkpoint.keep) = (every_steps, keep);
        Cutter::new(&job, Some(Folder::disk("checkpoints")), Vec::new())
    }

    #[test]
    fn checkpoints_are_due_by_steps_and_by_time() {
        let steps = |cutter: Cutter| (1..=6).filter(|step| cutter.is_due(*step)).collect::<Vec<_>>();
        assert_eq!(steps(cutter(Some(3), 1)), [3, 6]);
        assert_eq!((steps(cutter(None, 1)), steps(cutter(Some(3), 0))), (vec![], vec![]));
        let mut timed = cutter(None, 1);
        timed.every = Some(Duration::ZERO);
        assert_eq!(steps(timed).len(), 6);
    }

    /// A store may take its time, and training stands still meanwhile.
    #[tokio::test]
    async fn a_store_is_asked_for_an_older_manifest_only_where_one_is() {
        let store = zagros_fake_s3::FakeS3::start("models");
        let open = || Folder::open_in(&store.environment(), "s3://models/run", Duration::from_secs(20)).unwrap();
        store.put("run/resume-000000000005/manifest.json", "{}");
        let mut cutter = cutter(Some(5), 1);
        cutter.prepare(folder_of(&open(), 10), 10).await.unwrap();
        assert_eq!(store.requests(), [""; 0]);
        cutter.resumed_at(5);
        cutter.prepare(folder_of(&open(), 5), 5).await.unwrap();
        assert_eq!((store.keys(), cutter.newest()), (Vec::new(), 5));
    }

    /// As where the newest was damaged, and training went on from the one before.
    #[test]
    fn one_of_a_later_step_takes_no_place_of_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        for step in [600, 620, 800] {
            folder_of(&disk, step).make().unwrap().write(MANIFEST, b"{}").unwrap();
        }
        retain(&disk, 1, 620).unwrap();
        let left: Vec<u64> = all(&disk).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(left, [620]);
    }

    #[test]
    fn the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        for step in [5, 100, 20] {
            let checkpoint = folder_of(&disk, step).make().unwrap();
            checkpoint.write(MANIFEST, b"{}").unwrap();
        }
        folder_of(&disk, 7).make().unwrap();
        fs::create_dir(folder.path().join("step-000000007")).unwrap();
        let left = || all(&disk).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
        retain(&disk, 2, 100).unwrap();
        assert_eq!(left(), [20, 100]);
        delete_all(&disk).unwrap();
        assert!(left().is_empty());
        assert!(folder.path().join("step-000000007").is_dir());
    }
}
