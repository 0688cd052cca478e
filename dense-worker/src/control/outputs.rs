//! What a run leaves: the model, the summary, and no checkpoint that is not needed any more.

use std::sync::Arc;

use zagros_embedding_client::Shard;
use zagros_job::DENSE_TABLE;
use zagros_plumbing::process::{MachineInfo, peak_memory};
use zagros_protocol::control::DescribeRequest;

use super::blocking::blocking;
use super::row_servers::on_all;
use super::saved_model::{Trained, place, save};
use super::trainer::Trainer;
use super::worker::Worker;
use crate::error::WorkerError;
use crate::event::Event;
use crate::summary::{Outcome, Summary};

impl Worker {
    /// Model, summary, and only then no checkpoints any more: until all else is durable, they are what the same command
    /// goes on from (invariant CK-5).
    pub(super) async fn leave_behind(&self, trainer: &mut Trainer, outcome: Outcome) -> Result<Summary, WorkerError> {
        // What was measured is kept even where the model cannot be.
        let saved = match trainer.pull_weights().await {
            Ok(()) => self.save(trainer, outcome).await,
            Err(lost) => Err(lost),
        };
        let summary = summarise(trainer, outcome, &saved).await;
        let written = match &summary {
            Ok(summary) => self.write(summary).await,
            Err(_) => Ok(()),
        };
        let summary = saved.and(written).and(summary)?;
        if summary.complete {
            trainer.delete_checkpoints().await;
        }
        Ok(summary)
    }

    async fn write(&self, summary: &Summary) -> Result<(), WorkerError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let summary = summary.clone();
        blocking("summary", move || folder.write_summary(&summary)).await?
    }

    /// Answers where the model is, as the summary tells it.
    async fn save(&self, trainer: &Trainer, outcome: Outcome) -> Result<Option<String>, WorkerError> {
        let Some(run) = self.folder.as_ref().filter(|_| self.job.output.save_model) else { return Ok(None) };
        let ((steps, samples), (evaluation, validation)) = (trainer.model_age(), trainer.measures());
        let trained = Trained { job: &self.job, outcome, steps, samples, evaluation, validation };
        let (folder, shown) = place(&self.job, run)?;
        save(&folder, trained, &trainer.run.dense, &*trainer.run.client).await?;
        self.observer.on(&Event::Saved { folder: folder.to_string() });
        Ok(Some(shown))
    }
}

/// `saved` says where the model is, or that it could not be saved.
async fn summarise(
    trainer: &Trainer,
    outcome: Outcome,
    saved: &Result<Option<String>, WorkerError>,
) -> Result<Summary, WorkerError> {
    let (rows, table_bytes) = describe(trainer).await?;
    let tracker = &trainer.tracker;
    let seconds = tracker.seconds();
    let (evaluation, validation) = trainer.measures();
    let recent = tracker.recent();
    Ok(Summary {
        outcome,
        complete: outcome == Outcome::Finished && saved.is_ok(),
        steps: tracker.steps_of_all(),
        skipped_steps: tracker.skipped_steps(),
        samples: tracker.samples_of_all(),
        seconds,
        samples_per_second: if seconds > 0.0 { tracker.samples_of_all() as f64 / seconds } else { 0.0 },
        loss: tracker.loss(),
        train_auc: recent.auc,
        evaluation,
        validation,
        model_step: trainer.model_age().0,
        model: saved.as_ref().ok().cloned().flatten(),
        choice: trainer.scoring.model.message().map(str::to_owned),
        recent,
        epochs: trainer.scoring.of_epochs.clone(),
        rows,
        table_bytes,
        staleness: tracker.staleness(),
        stages: trainer.run.metrics.stage_seconds(),
        bad_rows: trainer.run.metrics.bad_rows.get(),
        peak_rss_bytes: peak_memory(),
        machine: MachineInfo::this(),
    })
}

/// Rows and bytes over all servers.
async fn describe(trainer: &Trainer) -> Result<(u64, u64), WorkerError> {
    let describe = |_, server: Arc<dyn Shard>| async move {
        let what = "describe its tables";
        let refused = |refusal| WorkerError::Storage { server: server.name().to_owned(), what, refusal };
        server.describe(DescribeRequest {}).await.map_err(refused)
    };
    let (_, described) = on_all(&*trainer.run.client, describe).await?;
    let mut tables: Vec<_> = described.into_iter().flat_map(|server| server.tables).collect();
    // The dense network is none of the rows that a user asks about.
    tables.retain(|table| trainer.stream.weights.is_none() || table.name != DENSE_TABLE);
    Ok((tables.iter().map(|table| table.rows).sum(), tables.iter().map(|table| table.bytes).sum()))
}
