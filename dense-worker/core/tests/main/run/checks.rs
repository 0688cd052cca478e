//! What the oracle checks at the end of a history: how the workers have ended, rows, samples and steps.

use std::collections::BTreeSet;

use zagros_coordinator_core::RunOutcome;
use zagros_worker_core::LoopEnd;
use zagros_zip::number_from;

use super::calls::{WorkerProcess, batches_of};
use super::world::{RunWorld, WorkerChange};
use crate::simulated::SimulatedWorker;

impl RunWorld {
    /// What is wrong at the end of a history: nothing.
    pub(crate) fn check(&mut self) {
        let endings: Vec<LoopEnd> = self.workers.iter().flatten().filter_map(|process| process.worker.ending).collect();
        let with_others = || endings.iter().filter(|ending| **ending != LoopEnd::Left);
        let end = *with_others().next().expect("a worker stays");
        assert!(with_others().all(|other| *other == end), "{endings:?}");
        let is_interrupted = end == LoopEnd::Interrupted && self.plan.change == WorkerChange::Stops;
        assert!(end == LoopEnd::Finished || is_interrupted, "{endings:?}");
        assert!(self.plan.change == WorkerChange::Leaves || !endings.contains(&LoopEnd::Left), "{endings:?}");
        self.check_rows();
        self.check_samples();
        self.check_steps();
        let outcome = self.coordinator.outcome();
        let is_expected = match outcome {
            Some(RunOutcome::Interrupted(_)) => self.plan.change == WorkerChange::Stops,
            outcome => outcome == Some(&RunOutcome::Finished),
        };
        assert!(is_expected, "{outcome:?}");
    }

    /// Asynchronous workers count their own steps. What the first one knows of all at the end are those of the run.
    fn check_steps(&self) {
        let steps = self.workers.iter().flatten().map(|process| process.worker.steps);
        assert!(steps.max() <= Some(self.plan.max_steps.unwrap_or(u64::MAX)), "more steps than were asked for");
        if self.plan.policy.is_asynchronous() && !self.plan.ends_early() && self.ledger.killed.is_empty() {
            let first = self.workers[0].as_ref().expect("it has saved");
            assert_eq!(first.worker.steps + first.counted.others_steps(0), self.ledger.trained.len() as u64);
        }
    }

    fn check_rows(&mut self) {
        if self.coordinator_due.take().is_some() {
            self.coordinator.restart(self.now);
            self.coordinator.take_events();
        }
        let placement = self.placement().expect("it is up");
        let owners: Vec<u32> =
            placement.owners.as_chunks::<4>().0.iter().map(|owner| u32::from_le_bytes(*owner)).collect();
        for (bucket, owner) in number_from(0_u32, owners) {
            let rows = self.servers[owner as usize].tables.rows.get(&bucket).cloned().unwrap_or_default();
            let mut seen = BTreeSet::new();
            for id in &rows {
                assert!(seen.insert(*id), "push {id:?} is in bucket {bucket} twice");
                assert!(self.ledger.made.get(id).is_some_and(|made| made.contains(&bucket)), "no worker made {id:?}");
            }
            let lost: Vec<_> =
                self.ledger.acknowledged.iter().filter(|(id, of)| *of == bucket && !seen.contains(id)).collect();
            assert!(lost.is_empty(), "bucket {bucket} at server {owner} has lost {lost:?}");
        }
    }

    /// Each batch of each split counts once: it was trained on by the process that completed the split, and else only by processes
    /// that were killed.
    fn check_samples(&self) {
        let ledger = &self.ledger;
        let splits = u64::from(self.plan.epochs) * self.plan.splits;
        let ends_early = self.plan.ends_early();
        assert!(ends_early || ledger.completed.len() as u64 == splits, "{:?}", ledger.completed);
        for (batch, trainers) in &ledger.trained {
            let Some(completer) = ledger.completed.get(&(batch.0, batch.1)).copied() else {
                assert!(ends_early, "the split of {batch:?} is not complete");
                continue;
            };
            let counted = trainers.iter().filter(|trainer| **trainer == completer).count();
            assert_eq!(counted, 1, "batch {batch:?} of a split of {completer:?} was trained on by {trainers:?}");
            for other in trainers.iter().filter(|trainer| **trainer != completer) {
                assert!(ledger.killed.contains(other), "{batch:?} was trained on by {other:?}, too");
            }
        }
        for split in ledger.completed.keys() {
            let is_trained = |number| ledger.trained.contains_key(&(split.0, split.1, number));
            assert!((0..batches_of(*split)).all(is_trained), "batches of {split:?} are missing");
        }
    }

    pub(crate) fn describe(&self) -> String {
        let workers = self.workers.iter().flatten().map(|process| {
            let WorkerProcess { worker, member, incarnation, pushes, open, has_left, .. } = process;
            let SimulatedWorker { training, at, stream, in_flight, .. } = worker;
            let state = training.state();
            format!(
                "worker {member} ({incarnation}) at {at:?} in {state:?}, left: {has_left}, {} pushes, to read {stream:?}, holds {open:?}, {in_flight:?}",
                pushes.len()
            )
        });
        let servers = self.servers.iter().map(|server| match &server.process {
            Some(process) => format!(
                "server of generation {}, {:?}, {:?}, half {:?}",
                process.generation, process.incoming, process.outgoing, server.tables.partial
            ),
            None => "no process".to_owned(),
        });
        let completed = format!("complete: {:?}", self.ledger.completed);
        workers.chain(servers).chain([completed]).collect::<Vec<_>>().join("\n")
    }
}
