//! Making a checkpoint: training stands still until its content is fixed, and goes on while the files are written.
//!
//! What fails here fails the checkpoint, never training: the last good one stays, and everyone hears of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::future::try_join_all;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;
use zagros_coordinator_client::Waiting;
use zagros_protocol::control::{SaveStage, WaitKind};
use zagros_scoring::{DENSE, OPTIMIZER, to_json};

use super::point::TRAINING;
use super::{ResumeCursor, TrainingPosition, delete_all, folder_of, retain_newest};
use crate::control::save::{TrainedModel, WrittenModel, on_all, save_rows, write_files};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::progress::OverallMeasures;
use crate::report::run_blocking;

impl Trainer {
    /// Makes a checkpoint of this moment, all workers together. The caller holds a place in the window, so that
    /// in mode `sync` no batch is looked up meanwhile.
    ///
    /// # Errors
    /// When training itself cannot go on: a push fails, or another worker is lost.
    pub(crate) async fn make_checkpoint(&mut self) -> Result<(), WorkerError> {
        if self.run.job.checkpoint.keep == 0 {
            return Ok(());
        }
        self.drain().await?;
        let mine = (self.resume_cursor(), self.tracker.done.overall.clone());
        let workers = self.run.dense.call(move |dense| dense.all_gather_values(&mine)).await??;
        if self.group.leads() {
            // Asynchronous workers wait for the content of the checkpoint at the coordinator.
            let (waits, ballots) = (self.group.is_asynchronous(), self.ballots.clone());
            let lead = self.lead_checkpoint(workers);
            let led = if waits { ballots.on_the_way(lead).await } else { lead.await };
            if let Err(error) = led {
                self.run.metrics.checkpoint_failures.inc();
                let step = self.tracker.all_counts().steps;
                warn!(%error, step, newest = self.checkpoints.newest_step(), "no checkpoint was made; training goes on");
            }
        }
        // Only now may anyone push again.
        if self.group.rank.is_some() {
            self.wait_for_all().await?;
        }
        Ok(())
    }

    /// After the last step: makes one more where training is to continue later, and waits for what is being written.
    pub(crate) async fn final_checkpoint(&mut self) -> Result<(), WorkerError> {
        self.checkpoints.finish_writing().await;
        self.make_checkpoint().await?;
        self.checkpoints.finish_writing().await;
        Ok(())
    }

    /// A run whose model and summary are written needs no checkpoint any more, and where it saves no model no kept
    /// state either.
    pub(crate) async fn delete_checkpoints(&mut self) {
        self.checkpoints.finish_writing().await;
        if let Err(error) = self.try_delete_checkpoints().await {
            warn!(%error, "old checkpoints are still there");
        }
    }

    async fn try_delete_checkpoints(&mut self) -> Result<(), WorkerError> {
        if let Some(folder) = self.checkpoints.folder.clone() {
            run_blocking("checkpoints", move || delete_all(&folder)).await??;
        }
        match &mut self.scoring.model.best_states {
            Some(states) if !self.run.job.output.save_model => states.delete_all().await,
            _ => Ok(()),
        }
    }

    fn resume_cursor(&self) -> ResumeCursor {
        let (order, next_seq) = (self.stream.position.order, self.stream.next_seq);
        let contents = self.stream.contents.clone();
        ResumeCursor { rest: self.stream.position.stream_remainder(), order, next_seq, contents }
    }

    async fn lead_checkpoint(&mut self, workers: Vec<(ResumeCursor, OverallMeasures)>) -> Result<(), WorkerError> {
        self.checkpoints.last = Instant::now();
        let Some(checkpoints) = self.checkpoints.folder.clone() else { return Ok(()) };
        if !self.checkpoints.is_free().await {
            let newest = self.checkpoints.newest_step();
            warn!(newest, "the checkpoint before is still being written; this one is skipped");
            return Ok(());
        }
        let started = Instant::now();
        let step = self.tracker.all_counts().steps;
        let folder = self.checkpoints.prepare_folder(folder_of(&checkpoints, step), step).await?;
        let training = self.training(workers).await?;
        // All gradients are in the rows now.
        self.pull_weights().await?;
        let parts = self.run.dense.call(|dense| {
            Ok::<_, WorkerError>((
                dense.model.to_safetensors()?,
                dense.model.optimizer_state()?,
                dense.model.products(),
            ))
        });
        let (weights, optimizer, products) = parts.await??;
        let capture = |index, server| {
            let waiting = Waiting::new("checkpoint", WaitKind::Servers, "its snapshot of the rows").with_server(index);
            let waiting = self.run.metrics.waits.begin_wait(waiting);
            let saved = save_rows(server, &folder, SaveStage::Capture);
            async move { saved.await.inspect(|_| drop(waiting)) }
        };
        let (servers, _) = on_all(&self.run.client, capture).await?;
        let pause_seconds = started.elapsed().as_secs_f64();
        self.run.metrics.checkpoint_pause_seconds.observe(pause_seconds);
        let (job, samples) = (Arc::clone(&self.run.job), self.tracker.all_counts().samples);
        let keep = self.checkpoints.rule.keep;
        // The manifest last (invariant CK-1); then the oldest go.
        let write = async move {
            let saved = servers.into_iter().map(|server| save_rows(server, &folder, SaveStage::Files));
            let saved = try_join_all(saved).await?;
            let own = vec![(DENSE, weights), (OPTIMIZER, optimizer), (TRAINING, to_json(&training))];
            let trained = TrainedModel::unfinished(&job, step, samples);
            let manifest = write_files(&folder, trained, WrittenModel { own, saved, products }).await?;
            let retained = run_blocking("checkpoints", move || retain_newest(&checkpoints, keep, step)).await;
            if let Err(error) = retained.and_then(|retained| retained) {
                // The new one is there all the same.
                warn!(%error, step, "older checkpoints are still there");
            }
            Ok::<u64, WorkerError>(manifest.rows)
        };
        let (observer, metrics) = (Arc::clone(&self.run.observer), self.run.metrics.clone());
        let (complete, membership) = (Arc::clone(&self.checkpoints.complete), Arc::clone(&self.run.membership));
        let written = tokio::spawn(async move {
            match write.await {
                Ok(rows) => {
                    metrics.checkpoint_written(step);
                    complete.store(step, Ordering::Release);
                    membership.update_progress(|progress| progress.checkpoint_step = step);
                    let seconds = started.elapsed().as_secs_f64();
                    observer.observe(&WorkerEvent::Checkpoint { step, rows, pause_seconds, seconds });
                    Ok(())
                }
                Err(error) => {
                    metrics.checkpoint_failures.inc();
                    Err(error)
                }
            }
        });
        self.checkpoints.under_way = Some(AbortOnDropHandle::new(written));
        Ok(())
    }

    async fn training(&self, workers: Vec<(ResumeCursor, OverallMeasures)>) -> Result<TrainingPosition, WorkerError> {
        let (mut readers, measures): (Vec<ResumeCursor>, _) = workers.into_iter().unzip();
        let contents = readers.iter_mut().flat_map(|reader| std::mem::take(&mut reader.contents)).collect();
        let known = TrainingPosition { readers, measures, contents, ..self.training_position() };
        let position = self.run.splits.position(self.epoch).await?.position;
        Ok(known.placed_at(&position.unwrap_or_default()))
    }

    /// What this worker knows of training, without where the data is.
    pub(crate) fn training_position(&self) -> TrainingPosition {
        TrainingPosition {
            tracker: self.tracker.state(),
            epoch: self.epoch,
            files: self.checkpoints.files.clone(),
            bad_rows: self.run.completer.bad_rows(),
            readers: Vec::new(),
            evaluated: self.scoring.evaluated,
            of_epochs: self.scoring.of_epochs.clone(),
            choice: self.scoring.model.choice_state(),
            ..TrainingPosition::starting_at(0)
        }
    }
}
