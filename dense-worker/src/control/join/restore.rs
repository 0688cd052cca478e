//! Resuming from a checkpoint: the first worker reads it, the others are sent what it read.

use zagros_worker_core::{Event, LoopCounts};

use super::start_model::StartedModel;
use crate::control::checkpoint::{ResumePoint, TrainingPosition};
use crate::control::group::GroupRank;
use crate::control::save::{LoadMode, OPTIMIZER, SavedModel};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::WorkerEvent;

impl Trainer {
    /// Gives rows, network, optimiser and counts the state of the checkpoint that the first worker has. Without one the run starts
    /// from the model that its job names, or everything stays as it is.
    ///
    /// # Errors
    /// When the checkpoint is damaged, or a server or another worker fails.
    pub(crate) async fn resume(&mut self, point: Option<&ResumePoint>) -> Result<Event, WorkerError> {
        let leads = self.group.rank.is_none_or(GroupRank::leads);
        let position = match point.filter(|_| leads) {
            Some(point) => {
                self.ballots.on_the_way(self.load(point)).await?;
                Some(point.training_position().clone())
            }
            None if leads => {
                self.run.observer.observe(&WorkerEvent::StartedOver);
                self.ballots.on_the_way(self.start_from_model()).await?
            }
            None => None,
        };
        // The others wait until the rows are loaded.
        self.ballots.wait_for_all().await?;
        let mine = position.map(|position| serde_json::to_vec(&position).unwrap_or_default());
        let shared = self.run.dense.call(|dense| dense.follow_rank(0, mine.unwrap_or_default())).await??;
        if shared.is_empty() {
            return Ok(Event::Ready(self.loop_counts(0)));
        }
        let training = serde_json::from_slice(&shared);
        let odd =
            |error: serde_json::Error| WorkerError::Thread { thread: "training state", reason: error.to_string() };
        let epoch = self.restore(training.map_err(odd)?);
        Ok(Event::Ready(self.loop_counts(epoch)))
    }

    pub(crate) fn loop_counts(&self, epoch: u32) -> LoopCounts {
        LoopCounts {
            epoch,
            steps: self.tracker.steps,
            others_steps: self.tracker.steps_of_all() - self.tracker.steps,
            evaluated: self.scoring.evaluated.map(|(step, _)| step),
            search: self.scoring.model.search,
            untouched: self.tracker.is_untouched(),
        }
    }

    async fn load(&self, point: &ResumePoint) -> Result<(), WorkerError> {
        let dense = &self.run.dense;
        let saved = SavedModel::open(point.folder()).await?;
        saved.load(dense, &*self.run.client, LoadMode::Replace).await?;
        self.forget_again().await?;
        let state = saved.read_file(OPTIMIZER).await?;
        dense.call(move |dense| dense.model.restore_optimizer(&state)).await?.map_err(WorkerError::from)?;
        self.run.observer.observe(&WorkerEvent::Resumed { step: point.step(), folder: point.folder().to_string() });
        Ok(())
    }

    /// Gives rows and network the state of the model that the job starts from, if it names one. Returns the position of a run that has
    /// made the model's steps, if the job counts on from them.
    async fn start_from_model(&self) -> Result<Option<TrainingPosition>, WorkerError> {
        let Some(start) = &self.start else { return Ok(None) };
        let StartedModel { folder, step, rows, differences } =
            start.load(&self.run.job, &self.run.dense, &*self.run.client).await?;
        // The run may have trained before, without a checkpoint.
        self.forget_again().await?;
        self.run.observer.observe(&WorkerEvent::StartedFrom { folder, step, rows, differences });
        Ok((step > 0).then(|| TrainingPosition::starting_at(step)))
    }

    fn restore(&mut self, mut training: TrainingPosition) -> u32 {
        let rank = self.group.row_order() as usize;
        self.stream.next_seq = training.next_seq(rank);
        if rank == 0 {
            self.stream.contents = std::mem::take(&mut training.contents);
        }
        self.stream.pushes.count_from(self.stream.next_seq);
        let step = training.tracker.steps;
        self.checkpoints.resumed_at(step);
        self.run.membership.update_progress(|progress| progress.checkpoint_step = step);
        let epoch = training.epoch;
        let world = self.group.rank.map_or(1, |group| group.world as usize);
        let measures = training.measures_of_rank(rank, world);
        if rank > 0 && self.group.is_asynchronous() {
            // Steps add up: what was done before is the first worker's.
            training.tracker = training.tracker.of_another();
        }
        training.tracker = training.tracker.with_overall(measures);
        self.continue_from(training);
        epoch
    }

    /// Counts, measures and choice are those of the run from now on.
    pub(crate) fn continue_from(&mut self, training: TrainingPosition) {
        self.tracker.restore(training.tracker);
        self.run.completer.count_bad_rows_from(training.bad_rows);
        self.scoring.evaluated = training.evaluated;
        self.scoring.of_epochs = training.of_epochs;
        self.scoring.model.restore(training.choice);
        // Embedding servers hear by the coordinator how far the run is, before they see a push that is.
        let (step, batch) = (self.tracker.steps_of_all(), self.stream.next_seq);
        self.run.membership.update_progress(|progress| (progress.step, progress.batch) = (step, batch));
    }
}
