//! What a run leaves: the model, the summary, and no checkpoint that is not needed any more.

use std::sync::Arc;

use zagros_embedding_client::Shard;
use zagros_plumbing::process::{MachineInfo, peak_memory};
use zagros_protocol::control::{BarrierReason, DescribeRequest};
use zagros_scoring::TrainingOutcome;

use super::saved_model::{TrainedModel, model_place, on_all, save, storage_error};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::report::run_blocking;
use crate::summary::RunSummary;

#[derive(Debug)]
pub(crate) struct ModelHere {
    /// Where it is, as the summary tells it.
    shown: String,
    rows: u64,
}

impl Trainer {
    /// Saves what the run leaves; only the first worker has a folder to write to. With `together` all workers wait until it has saved:
    /// if it is lost before, they form a group with its replacement, which saves (invariant RK-6). A summary that is complete is
    /// kept in [`Self::saved`].
    ///
    /// # Errors
    /// When model or summary cannot be written. [`WorkerError::BarrierMissed`] when a worker is lost meanwhile.
    pub(crate) async fn save(&mut self, outcome: TrainingOutcome, together: bool) -> Result<(), WorkerError> {
        self.run.membership.update_progress(|progress| progress.trained = outcome == TrainingOutcome::Finished);
        let summary = if together {
            let ballots = self.ballots.clone();
            let summary = ballots.on_the_way(self.model_and_summary(outcome)).await?;
            // Where one of them was asked to stop meanwhile, it is the end as well.
            self.ballots.vote_for(BarrierReason::Saved).await?;
            summary
        } else {
            self.model_and_summary(outcome).await?
        };
        // Until all else is durable, they are what the same command goes on from (invariant CK-5), and what a replacement of the first
        // worker needs.
        if summary.complete {
            self.delete_checkpoints().await;
        }
        self.saved = Some(summary);
        Ok(())
    }

    async fn model_and_summary(&self, outcome: TrainingOutcome) -> Result<RunSummary, WorkerError> {
        // What was measured is kept even where the model cannot be.
        let saved = match self.pull_weights().await {
            Ok(()) => self.save_model(outcome).await,
            Err(lost) => Err(lost),
        };
        let summary = self.summary(outcome, &saved).await;
        let written = match &summary {
            Ok(summary) => self.write(summary).await,
            Err(_) => Ok(()),
        };
        saved.and(written).and(summary)
    }

    pub(crate) async fn write(&self, summary: &RunSummary) -> Result<(), WorkerError> {
        let Some(folder) = self.run.folder.clone() else { return Ok(()) };
        let summary = summary.clone();
        run_blocking("summary", move || folder.write_summary(&summary)).await?
    }

    async fn save_model(&self, outcome: TrainingOutcome) -> Result<Option<ModelHere>, WorkerError> {
        let job = &self.run.job;
        let Some(run) = self.run.folder.as_ref().filter(|_| job.output.save_model) else { return Ok(None) };
        let ((steps, samples), (evaluation, validation)) = (self.model_age(), self.model_measures());
        let calibrators = self.scoring.calibrators.as_ref();
        let trained = TrainedModel { job, outcome, steps, samples, evaluation, validation, calibrators };
        let (folder, shown) = model_place(job, run)?;
        let manifest = save(&folder, trained, &self.run.dense, &self.run.client).await?;
        self.run.observer.observe(&WorkerEvent::Saved { folder: folder.to_string() });
        Ok(Some(ModelHere { shown, rows: manifest.rows }))
    }

    /// `saved` says where the model is, or that it could not be saved.
    pub(crate) async fn summary(
        &self,
        outcome: TrainingOutcome,
        saved: &Result<Option<ModelHere>, WorkerError>,
    ) -> Result<RunSummary, WorkerError> {
        let (in_memory, table_bytes) = self.describe().await?;
        let model = saved.as_ref().ok().and_then(Option::as_ref);
        // Servers know the rows that they have in memory. What is on disk too is counted while it is saved.
        let rows = model.filter(|_| self.run.job.reads_disk()).map_or(in_memory, |model| model.rows);
        let tracker = &self.tracker;
        let seconds = tracker.training_seconds();
        let (evaluation, validation) = self.model_measures();
        let recent = tracker.recent_measures();
        Ok(RunSummary {
            outcome,
            complete: outcome == TrainingOutcome::Finished && saved.is_ok(),
            steps: tracker.all_counts().steps,
            skipped_steps: tracker.done.counts.skipped,
            samples: tracker.all_counts().samples,
            seconds,
            samples_per_second: if seconds > 0.0 { tracker.all_counts().samples as f64 / seconds } else { 0.0 },
            loss: tracker.smoothed_loss(),
            train_auc: recent.auc,
            evaluation,
            test: evaluation,
            validation,
            baselines: evaluation.or(validation).and_then(|measured| self.measure_baselines(&measured)),
            calibrated: self.scoring.calibrated,
            slices: self.measured_parts().map_or_else(Vec::new, |parts| parts.slices.clone()),
            targets: self.measured_parts().map_or_else(Vec::new, |parts| parts.targets.clone()),
            model_step: self.model_age().0,
            model: model.map(|model| model.shown.clone()),
            choice: self.scoring.model.message.clone(),
            advice: self.list_advice(),
            recent,
            epochs: self.scoring.of_epochs.clone(),
            rows,
            table_bytes,
            staleness: tracker.staleness(),
            lookahead: self.run.job.reads_disk().then(|| self.run.client.lookahead_counts()),
            stages: self.run.metrics.stage_seconds(),
            bad_rows: self.run.metrics.bad_rows.get(),
            peak_rss_bytes: peak_memory(),
            machine: MachineInfo::of_this_machine(),
            cost: tracker.cost(),
        })
    }

    async fn describe(&self) -> Result<(u64, u64), WorkerError> {
        let describe = |_, server: Arc<dyn Shard>| async move {
            let described = server.describe(DescribeRequest {}).await;
            described.map_err(|refusal| storage_error(&*server, "describe its tables", refusal))
        };
        let (_, described) = on_all(&self.run.client, describe).await?;
        let mut tables: Vec<_> = described.into_iter().flat_map(|server| server.tables).collect();
        // The dense network is none of the rows that a user asks about.
        tables.retain(|table| self.run.job.tables.iter().any(|own| own.name == table.name));
        Ok((tables.iter().map(|table| table.rows).sum(), tables.iter().map(|table| table.bytes).sum()))
    }
}
