//! Where a worker goes on from: from a checkpoint, which the first worker reads and sends the others; in a new group from the
//! most advanced rank.

use tracing::warn;
use zagros_job::Mode;
use zagros_scoring::{OPTIMIZER, SavedModel, damaged};
use zagros_worker_core::{Event, LoopCounts};

use crate::control::checkpoint::{ResumePoint, TrainingPosition};
use crate::control::group::GroupSession;
use crate::control::save::{load_model, open_model, read_file};
use crate::control::step::{TrackerState, VotedCounts};
use crate::control::trainer::Trainer;
use crate::datapath::prepared::inconsistent_batch;
use crate::error::WorkerError;
use crate::event::WorkerEvent;
use crate::progress::OverallMeasures;

impl Trainer {
    /// Gives rows, network, optimiser and counts the state of the checkpoint that the first worker has. Without one the run starts
    /// from the model that its job names, or everything stays as it is.
    pub(crate) async fn resume(&mut self, point: Option<&ResumePoint>) -> Result<Event, WorkerError> {
        let leads = self.group.leads();
        let position = match point.filter(|_| leads) {
            Some(point) => {
                self.ballots.on_the_way(self.load(point)).await?;
                Some(point.training.clone())
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

    fn loop_counts(&self, epoch: u32) -> LoopCounts {
        LoopCounts {
            epoch,
            steps: self.tracker.own_steps(),
            others_steps: self.tracker.all_counts().steps - self.tracker.own_steps(),
            evaluated: self.scoring.evaluated.map(|(step, _)| step),
            search: self.scoring.model.search,
            untouched: self.tracker.is_untouched(),
        }
    }

    /// Another library's products have other bits. Mode `sync` promises the bits of a run that was not interrupted (invariant CK-2).
    async fn compare_products(&self, saved: &SavedModel) -> Result<(), WorkerError> {
        let (before, now) = (&saved.manifest.products, self.run.dense.call(|dense| dense.model.products()).await?);
        if before.is_empty() || before == now {
            return Ok(());
        }
        if self.run.job.train.mode != Mode::Sync {
            warn!(
                "the products of this run were made by {before}, and are made by {now} from now on: their last bits differ"
            );
            return Ok(());
        }
        let reason = format!(
            "the products of this run were made by {before}, and this program makes them by {now}, whose last bits differ: mode sync \
             promises the same bits; resume with the program that began the run, or start anew (--fresh)"
        );
        Err(damaged(&saved.folder, reason).into())
    }

    async fn load(&self, point: &ResumePoint) -> Result<(), WorkerError> {
        let dense = &self.run.dense;
        let saved = open_model(point.folder()).await?;
        self.compare_products(&saved).await?;
        load_model(&saved, dense, &self.run.client).await?;
        self.forget_again().await?;
        let state = read_file(&saved, OPTIMIZER).await?;
        dense.call(move |dense| dense.model.restore_optimizer(&state)).await?.map_err(WorkerError::from)?;
        self.run.observer.observe(&WorkerEvent::Resumed { step: point.step(), folder: point.folder().to_string() });
        Ok(())
    }

    /// Gives rows and network the state of the model that the job starts from, if it names one. Returns the position of a run that has
    /// made the model's steps, if the job counts on from them.
    async fn start_from_model(&self) -> Result<Option<TrainingPosition>, WorkerError> {
        let Some(start) = &self.start else { return Ok(None) };
        let started = start.load(&self.run.job, &self.run.dense, &self.run.client).await?;
        // The run may have trained before, without a checkpoint.
        self.forget_again().await?;
        self.run.observer.observe(&started);
        Ok(Some(start.first_step()).filter(|step| *step > 0).map(TrainingPosition::starting_at))
    }

    fn restore(&mut self, mut training: TrainingPosition) -> u32 {
        let rank = self.group.row_order() as usize;
        self.stream.next_seq = training.next_seq(rank);
        if rank == 0 {
            self.stream.contents = std::mem::take(&mut training.contents);
        }
        self.stream.pushes.count_from(self.stream.next_seq);
        let step = training.tracker.counts.steps;
        self.checkpoints.resumed_at(step);
        self.run.membership.update_progress(|progress| progress.checkpoint_step = step);
        let epoch = training.epoch;
        let world = self.group.rank.map_or(1, |group| group.world as usize);
        let measures = training.measures_of_rank(rank, world);
        if rank > 0 && self.group.is_asynchronous() {
            // Steps add up: what was done before is the first worker's.
            training.tracker = TrackerState::starting_at(0).in_epoch_of(&training.tracker);
        }
        training.tracker.overall = measures;
        self.continue_from(training);
        epoch
    }

    /// Counts, measures and choice are those of the run from now on.
    fn continue_from(&mut self, training: TrainingPosition) {
        self.tracker.restore(training.tracker);
        self.run.completer.count_bad_rows_from(training.bad_rows);
        self.scoring.evaluated = training.evaluated;
        self.scoring.of_epochs = training.of_epochs;
        self.scoring.model.restore(training.choice);
        // Embedding servers hear by the coordinator how far the run is, before they see a push that is.
        let (step, batch) = (self.tracker.all_counts().steps, self.stream.next_seq);
        self.run.membership.update_progress(|progress| (progress.step, progress.batch) = (step, batch));
    }

    /// Continues from the state of the most advanced rank, `source`. Where that is further than this worker, its counts are
    /// taken too (`adopt`). An asynchronous worker keeps the counts of its own steps.
    pub(crate) async fn follow_rank(
        &mut self,
        source: usize,
        adopt: bool,
        same_epoch: bool,
    ) -> Result<Event, WorkerError> {
        let leads = self.group.row_order() as usize == source;
        let mine =
            leads.then(|| serde_json::to_vec(&(self.training_position(), &self.group.counted)).unwrap_or_default());
        let shared = self.run.dense.call(move |dense| dense.follow_rank(source, mine.unwrap_or_default())).await??;
        let (training, counted): (TrainingPosition, VotedCounts) = serde_json::from_slice(&shared)
            .map_err(|error| inconsistent_batch(0, format!("what dense worker {source} sent of training ({error})")))?;
        let epoch = if adopt { training.epoch } else { self.epoch };
        if adopt {
            self.adopt(training, same_epoch);
        }
        self.count_with(counted);
        self.stream.remainder = self.stream.position.stream_to_resume().filter(|_| same_epoch);
        self.stream.pushes.count_from(self.stream.next_seq);
        let (generation, step) = (self.group.generation(), self.tracker.own_steps());
        let workers = self.group.indices.clone();
        self.run.observer.observe(&WorkerEvent::Regrouped { step, generation, source: workers[source], workers });
        Ok(Event::Ready(self.loop_counts(epoch)))
    }

    fn adopt(&mut self, mut training: TrainingPosition, same_epoch: bool) {
        // Of asynchronous workers each counts its own steps.
        let steps_are_its_own = self.group.is_asynchronous();
        if steps_are_its_own {
            training.tracker = self.tracker.own_state().in_epoch_of(&training.tracker);
        }
        // The rows that this worker has seen in the epoch are its own.
        let own = Some(self.tracker.done.overall.clone()).filter(|_| same_epoch);
        training.tracker.overall = own.unwrap_or_else(OverallMeasures::new);
        self.continue_from(training);
        // Its batches are numbered as those of the others are, for a user who reads of them.
        let steps = if steps_are_its_own { self.group.most_steps } else { self.tracker.own_steps() };
        self.stream.next_seq = self.stream.next_seq.max(steps);
    }

    /// Takes what all asynchronous workers have counted, and counts those whose processes are gone as gone.
    fn count_with(&mut self, mut counted: VotedCounts) {
        if !self.group.is_asynchronous() {
            return;
        }
        let GroupSession { indices, newcomers, .. } = &self.group;
        let is_gone = |index: u32| !indices.contains(&index) || newcomers.contains(&index);
        counted.note_departed(is_gone);
        self.tracker.others = counted.counts_of_others(self.group.worker_index());
        self.group.counted = counted;
    }
}
