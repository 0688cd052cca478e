//! What a worker does ahead of its steps: it asks for splits, parses batches, and looks their rows up as far as the window allows.

use zagros_worker_core::{Event, StepFacts};

use super::{SimWork, SimWorld};
use crate::coordination::SplitAnswer;
use crate::error::PlannerError;
use crate::worker::{BatchLookup, SplitProgress, WorkerId};

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

impl crate::worker::SimWorker {
    fn unread(&self) -> u64 {
        self.splits.iter().filter_map(|id| self.held.get(id)).map(|split| split.unread).sum()
    }

    pub(super) fn take_split(&mut self, id: u64, samples: u64) {
        self.splits.push_back(id);
        self.held.insert(id, SplitProgress { unread: samples, ..SplitProgress::default() });
    }
}
