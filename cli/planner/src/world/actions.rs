//! What a worker's driver does for its state machine; and what it does ahead of its steps: it asks for splits, parses batches, and looks their
//! rows up as far as the window allows.

use zagros_worker_core::{Action, Event, InFlight, LoopCounts, StepFacts};

use super::{SimEvent, SimWork, SimWorld};
use crate::coordination::SplitAnswer;
use crate::error::PlannerError;
use crate::worker::{BatchLookup, SimWorker, SplitProgress, WorkerId};

/// Seconds after which a worker asks again for its group.
const GROUP_POLL: f64 = 0.2;

impl SimWorld {
    /// Tells a worker's state machine what has happened, and does what it answers.
    pub(super) fn report_event(&mut self, index: usize, event: Event) -> Result<(), PlannerError> {
        let actions = self.workers[index].training.on_event(event);
        self.perform_all(index, &actions)
    }

    pub(super) fn perform_all(&mut self, index: usize, actions: &[Action]) -> Result<(), PlannerError> {
        for action in actions {
            match *action {
                Action::StartRound { stream, .. } => self.workers[index].streams = stream,
                Action::ReleasePermit => self.workers[index].kept = None,
                Action::End(ending) => self.end(index, ending)?,
                action if action.has_reply() => self.perform(index, action)?,
                // Reports and measures.
                _ => {}
            }
        }
        Ok(())
    }

    fn perform(&mut self, index: usize, action: Action) -> Result<(), PlannerError> {
        let now = self.queue.now();
        let worker = &mut self.workers[index];
        (worker.action, worker.since) = (action, now);
        match action {
            Action::Form { after, progress } => {
                worker.progress = progress;
                self.ask_for_group(index, after)?;
            }
            Action::Resume => self.reply(index, Event::Ready(LoopCounts { untouched: true, ..LoopCounts::default() })),
            Action::Follow { source, in_flight, adopt, .. } => self.follow(index, source, in_flight, adopt),
            Action::LeaveGroup => self.leave_group(index),
            Action::FindStream(_) => self.find_stream(index)?,
            Action::WaitForSplits { pause, .. } => {
                let id = worker.id;
                self.queue.push(now + pause.as_secs_f64(), SimEvent::AskAgain(id));
            }
            Action::NextBatch { .. } => {
                worker.asks = true;
                self.go_ahead(index)?;
            }
            Action::Step { batch, .. } => self.start_step(index, batch)?,
            Action::Agree { .. } | Action::WaitForAll | Action::Vote(_) => self.enter_call(index)?,
            Action::Drain | Action::CloseRound { .. } => {
                if worker.unacknowledged == 0 {
                    self.reply(index, Event::Drained);
                } else {
                    worker.drains = true;
                }
            }
            Action::CompleteStream => self.reply(index, Event::Drained),
            Action::CloseEpoch { .. } => self.reply(index, Event::EpochClosed),
            Action::Evaluate => self.reply(index, Event::Evaluated { measured: None }),
            Action::Checkpoint | Action::FinalCheckpoint => self.reply(index, Event::CheckpointDone),
            Action::ResetRows => self.reply(index, Event::RowsReset),
            Action::Conclude { .. } => self.reply(index, Event::Concluded),
            Action::Save { .. } => self.reply(index, Event::Saved),
            action => return Err(self.stuck(&format!("worker {index} is to do {action:?}"))),
        }
        Ok(())
    }

    /// What a worker asked for and did not get.
    pub(super) fn ask_again(&mut self, index: usize) -> Result<(), PlannerError> {
        match self.workers[index].action {
            Action::Form { after, .. } => self.ask_for_group(index, after),
            Action::WaitForSplits { .. } => {
                self.reply(index, Event::WaitOver);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The rest of the worker's own stream comes first.
    fn find_stream(&mut self, index: usize) -> Result<(), PlannerError> {
        let worker = &mut self.workers[index];
        let has_rest = !worker.parsing.is_empty() || !worker.ready.is_empty() || !worker.lookups.is_empty();
        worker.is_dry = false;
        if has_rest || !worker.splits.is_empty() {
            self.reply(index, Event::StreamFound);
            return Ok(());
        }
        let (now, who) = (self.queue.now(), worker.membership);
        let deal = self.coordination.assign_split(now, who, false);
        let event = match self.admitted(deal)? {
            SplitAnswer::Split { id, samples } => {
                self.workers[index].take_split(id, samples);
                Event::StreamFound
            }
            SplitAnswer::Wait(pause) => Event::SplitsHeld { pause, checkpoint_by_time: false },
            SplitAnswer::Nothing => Event::NoSplits,
        };
        self.reply(index, event);
        Ok(())
    }

    fn ask_for_group(&mut self, index: usize, after: u64) -> Result<(), PlannerError> {
        if self.workers.len() == 1 {
            self.reply(index, Event::Formed { group: None, progress: Vec::new() });
            return Ok(());
        }
        let (now, who, id) = (self.queue.now(), self.workers[index].membership, self.workers[index].id);
        let answer = self.coordination.join_group(now, who, after);
        let group = self.admitted(answer)?;
        if group.generation > after {
            self.workers[index].formed = Some((group.generation, group.rank));
            let members: Vec<usize> = group.workers.iter().map(|index| *index as usize).collect();
            self.form_if_all_know(group.generation, &members);
        }
        if self.workers[index].action == (Action::Form { after, progress: self.workers[index].progress }) {
            self.queue.push(now + GROUP_POLL, SimEvent::AskAgain(id));
        }
        Ok(())
    }

    /// Takes the state of the most advanced rank.
    fn follow(&mut self, index: usize, source: usize, in_flight: InFlight, adopt: bool) {
        // A step ends for all ranks at once here, so none has made one that another has not.
        debug_assert_eq!(in_flight, InFlight::ReadAgain);
        let lead = &self.workers[self.gathering.members[source]].training;
        let (progress, search) = (lead.rank_progress(), lead.search_state());
        let own = self.workers[index].training.rank_progress();
        let counts = if adopt { progress } else { own };
        let steps = if self.policy.is_asynchronous() { own.steps } else { counts.steps };
        self.workers[index].steps = self.workers[index].steps.max(steps);
        let ready =
            LoopCounts { epoch: counts.epoch, steps, others_steps: 0, evaluated: None, search, untouched: false };
        self.reply(index, Event::Ready(ready));
    }

    /// Nothing of the last step stays in flight.
    fn leave_group(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if let Some((batch, _)) = worker.batch.take() {
            worker.ready.push_front(batch);
        }
        (worker.kept, worker.asks) = (None, false);
        worker.attempts += 1;
        if worker.unacknowledged == 0 {
            self.reply(index, Event::Left);
        } else {
            worker.drains = true;
        }
    }

    /// A step of the dense network, of a worker alone or of a rank.
    fn start_step(&mut self, index: usize, has_batch: bool) -> Result<(), PlannerError> {
        let variation = self.scenario.settings.step_variation;
        let (times, machine) = (self.cluster.worker_times(index), self.cluster.worker_machines[index]);
        let samples = self.workers[index].batch.as_ref().filter(|_| has_batch).map(|(batch, _)| batch.samples as f64);
        let Some(samples) = samples else { return self.enter_call(index) };
        let worker = &mut self.workers[index];
        worker.attempts += 1;
        let (seconds, work) =
            (times.step * samples * worker.draw_step(variation), SimWork::Step(worker.id, worker.attempts));
        self.workers[index].step_parts = 1 + self.weight_parts();
        self.compute(machine, seconds, times.step_threads, work);
        self.start_weights(index);
        Ok(())
    }

    /// The step is computed, or its streamed weights and gradients have passed: it ends with the last of them.
    pub(super) fn end_step_part(&mut self, id: WorkerId, attempt: u64) -> Result<(), PlannerError> {
        if !self.is_current(id) || self.workers[id.index].attempts != attempt {
            return Ok(());
        }
        let now = self.queue.now();
        let worker = &mut self.workers[id.index];
        worker.step_parts -= 1;
        if worker.step_parts > 0 {
            return Ok(());
        }
        worker.spent.dense += now - worker.since;
        worker.since = now;
        if self.policy.is_group() {
            return self.enter_call(id.index);
        }
        let Some((batch, place)) = self.workers[id.index].batch.take() else { return Ok(()) };
        self.stepped(id.index, batch.samples);
        self.workers[id.index].kept = Some(place.clone());
        self.start_push(id.index, batch, place);
        self.reply(id.index, Event::Stepped { ahead: None });
        Ok(())
    }

    /// Counts a step, and lets the training loop's own work run beside the next one.
    pub(super) fn stepped(&mut self, index: usize, samples: u64) {
        self.workers[index].steps += 1;
        self.progress.note_step(self.queue.now(), samples);
        let (times, machine) = (self.cluster.worker_times(index), self.cluster.worker_machines[index]);
        self.compute(machine, times.training_loop * samples as f64, 1.0, SimWork::Aside);
    }
}

/// Batches that are parsed or ready before they are looked up.
const READ_AHEAD: usize = 4;
/// Batches that are looked up before they are asked for, if the window allows: as `dense-worker/src/datapath/prefetch.rs` has it.
const LOOKUPS_AHEAD: usize = 2;

impl SimWorld {
    /// Reads and looks up whatever may start now.
    pub(super) fn go_ahead(&mut self, index: usize) -> Result<(), PlannerError> {
        self.read_ahead(index)?;
        self.look_up_ahead(index);
        self.deliver(index);
        Ok(())
    }

    fn read_ahead(&mut self, index: usize) -> Result<(), PlannerError> {
        let (times, machine) = (self.cluster.worker_times(index), self.cluster.worker_machines[index]);
        let most = self.scenario.work.batch.round() as u64;
        loop {
            let worker = &self.workers[index];
            let is_full =
                worker.parsing.len() >= times.parsers || worker.parsing.len() + worker.ready.len() >= READ_AHEAD;
            if !worker.streams || worker.is_dry || is_full {
                return Ok(());
            }
            self.hold_samples(index, most)?;
            let worker = &mut self.workers[index];
            let Some(batch) = worker.cut_batch(most) else { return Ok(()) };
            let (seconds, work) = (times.read * batch.samples as f64, SimWork::Read(worker.id, batch.number));
            worker.parsing.push(batch);
            self.compute(machine, seconds, 1.0, work);
        }
    }

    /// Asks for splits until there are samples for a whole batch, or the coordinator has none.
    fn hold_samples(&mut self, index: usize, most: u64) -> Result<(), PlannerError> {
        while !self.workers[index].is_dry && self.workers[index].unread() < most {
            let (now, who) = (self.queue.now(), self.workers[index].membership);
            let deal = self.coordination.assign_split(now, who, true);
            match self.admitted(deal)? {
                SplitAnswer::Split { id, samples } => self.workers[index].take_split(id, samples),
                SplitAnswer::Wait(_) | SplitAnswer::Nothing => self.workers[index].is_dry = true,
            }
        }
        Ok(())
    }

    pub(super) fn complete_splits(&mut self, index: usize, splits: Vec<u64>) -> Result<(), PlannerError> {
        if splits.is_empty() {
            return Ok(());
        }
        let (now, who) = (self.queue.now(), self.workers[index].membership);
        let completed = self.coordination.complete_splits(now, who, splits);
        self.admitted(completed)
    }

    pub(super) fn end_read(&mut self, id: WorkerId, number: u64) -> Result<(), PlannerError> {
        if !self.is_current(id) {
            return Ok(());
        }
        let worker = &mut self.workers[id.index];
        if let Some(at) = worker.parsing.iter().position(|batch| batch.number == number) {
            let batch = worker.parsing.remove(at);
            worker.ready.push_back(batch);
        }
        self.go_ahead(id.index)
    }

    pub(super) fn look_up_ahead(&mut self, index: usize) {
        loop {
            let worker = &mut self.workers[index];
            if worker.lookups_ahead() >= LOOKUPS_AHEAD || worker.ready.is_empty() {
                return;
            }
            let Some(place) = worker.window.take_place() else { return };
            let Some(batch) = worker.ready.pop_front() else { return };
            self.progress.note_staleness(place.staleness);
            let lookup = BatchLookup { batch, place, arrived: false };
            let (number, samples) = (lookup.batch.number, lookup.batch.samples);
            worker.lookups.push_back(lookup);
            self.start_lookup(index, number, samples);
        }
    }

    /// The rows of a batch are there.
    pub(super) fn looked_up(&mut self, id: WorkerId, number: u64) {
        let lookups = &mut self.workers[id.index].lookups;
        if let Some(lookup) = lookups.iter_mut().find(|lookup| lookup.batch.number == number) {
            lookup.arrived = true;
        }
        self.deliver(id.index);
    }

    /// Answers a worker that asks for its next batch, once it is there or none is to come.
    pub(super) fn deliver(&mut self, index: usize) {
        let (now, facts) = (self.queue.now(), self.step_facts());
        let worker = &mut self.workers[index];
        if !worker.asks {
            return;
        }
        let event = match worker.lookups.front() {
            Some(first) if first.arrived => {
                let Some(BatchLookup { batch, place, .. }) = worker.lookups.pop_front() else { return };
                worker.batch = Some((batch, place));
                Event::BatchReady(facts)
            }
            Some(_) => return,
            None if worker.is_exhausted() => Event::StreamDry(facts),
            None => return,
        };
        worker.asks = false;
        worker.spent.batches += now - worker.since;
        self.reply(index, event);
    }

    /// The facts that a vote depends on: no worker joins or leaves here, and no checkpoint is due by time.
    pub(super) fn step_facts(&self) -> StepFacts {
        StepFacts { checkpoint_by_time: false, newest_group: 0, leaves: false }
    }
}

impl SimWorker {
    fn unread(&self) -> u64 {
        self.splits.iter().filter_map(|id| self.held.get(id)).map(|split| split.unread).sum()
    }

    pub(super) fn take_split(&mut self, id: u64, samples: u64) {
        self.splits.push_back(id);
        self.held.insert(id, SplitProgress { unread: samples, ..SplitProgress::default() });
    }
}
