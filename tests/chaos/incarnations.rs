//! The processes that were dense workers, one after the other in each place, and the batches that each of them pushed.

use std::collections::{BTreeMap, BTreeSet};

use zagros_embedding_client::push_record::StartedPush;

/// A worker's process: its writer, and how often that was started.
pub(crate) type IncarnationKey = (u64, u32);

#[derive(Clone, Debug, Default)]
pub(crate) struct IncarnationLog {
    incarnations: BTreeMap<IncarnationKey, WorkerIncarnation>,
    /// Batches of processes that were all started again, by step.
    kept: Vec<PushedBatch>,
}

#[derive(Clone, Debug, Default)]
struct WorkerIncarnation {
    worker: u32,
    is_hit: bool,
    /// Hash of the dense network that it ended with. A process without one was lost.
    network: Option<u64>,
    batches: BTreeMap<u64, PushedBatch>,
}

#[derive(Clone, Debug, Default)]
struct PushedBatch {
    step: u64,
    samples: u64,
    /// Splits whose last row it has.
    splits: Vec<u64>,
    is_acknowledged: bool,
}

impl IncarnationLog {
    pub(crate) fn join(&mut self, key: IncarnationKey, worker: u32) {
        self.incarnations.entry(key).or_default().worker = worker;
    }

    pub(crate) fn start(&mut self, key: IncarnationKey, push: &StartedPush) {
        // The first step after a return says how far the run went back.
        while self.kept.pop_if(|batch| batch.step >= push.step).is_some() {}
        let StartedPush { seq, step, samples, ref splits, .. } = *push;
        let batch = PushedBatch { step, samples, splits: splits.clone(), is_acknowledged: false };
        self.incarnations.entry(key).or_default().batches.insert(seq, batch);
    }

    pub(crate) fn finish(&mut self, key: IncarnationKey, seq: u64) {
        let batch = self.incarnations.get_mut(&key).and_then(|incarnation| incarnation.batches.get_mut(&seq));
        batch.into_iter().for_each(|batch| batch.is_acknowledged = true);
    }

    pub(crate) fn note_network(&mut self, key: IncarnationKey, hash: u64) {
        self.incarnations.entry(key).or_default().network = Some(hash);
    }

    /// A fault hits the processes that are now in the place of a worker.
    pub(crate) fn hit(&mut self, worker: u32) {
        self.incarnations.values_mut().filter(|one| one.worker == worker).for_each(|one| one.is_hit = true);
    }

    /// Every process was started again. Writers and incarnations have the same numbers as before.
    pub(crate) fn go_back(&mut self) {
        let ended = std::mem::take(&mut self.incarnations);
        self.kept.extend(ended.into_values().flat_map(|incarnation| incarnation.batches.into_values()));
        self.kept.retain(|batch| batch.is_acknowledged);
        self.kept.sort_by_key(|batch| batch.step);
    }

    /// Another process is in its place, or a fault hit it and it has not come to the end.
    pub(crate) fn may_be_lost(&self, key: IncarnationKey) -> bool {
        self.incarnations.get(&key).is_some_and(|one| one.network.is_none() && (one.is_hit || !self.is_newest(key)))
    }

    fn is_newest(&self, (writer, incarnation): IncarnationKey) -> bool {
        self.incarnations.range((writer, incarnation + 1)..=(writer, u32::MAX)).next().is_none()
    }

    pub(crate) fn samples(&self) -> u64 {
        let batches = self.incarnations.values().flat_map(|incarnation| incarnation.batches.values());
        batches.chain(&self.kept).filter(|batch| batch.is_acknowledged).map(|batch| batch.samples).sum()
    }

    pub(crate) fn splits(&self) -> BTreeSet<u64> {
        let ends = self.incarnations.values().flat_map(WorkerIncarnation::splits);
        self.kept.iter().flat_map(|batch| batch.splits.iter().copied()).chain(ends).collect()
    }

    /// Processes that did not come to the end, and the samples that they pushed.
    pub(crate) fn lost(&self) -> (u64, u64) {
        self.unended().fold((0, 0), |(count, samples), one| (count + 1, samples + one.samples_from(0)))
    }

    /// Samples of batches that lost processes pushed, and that were not acknowledged to them.
    pub(crate) fn under_way(&self) -> u64 {
        let batches = self.unended().flat_map(|incarnation| incarnation.batches.values());
        batches.filter(|batch| !batch.is_acknowledged).map(|batch| batch.samples).sum()
    }

    fn unended(&self) -> impl Iterator<Item = &WorkerIncarnation> {
        self.incarnations.values().filter(|incarnation| incarnation.network.is_none())
    }

    /// A process completes its splits in their order. So the last one that no other process completed as well is
    /// complete, and what may be repeated comes after it: from the batch with its last row on, and in a shuffle window
    /// of so many rows before that.
    pub(crate) fn most_repeated(&self, shuffled: u64) -> u64 {
        let mut times = BTreeMap::<u64, u32>::new();
        let ends = self.incarnations.values().flat_map(WorkerIncarnation::splits);
        ends.for_each(|split| *times.entry(split).or_default() += 1);
        let is_counted = |batch: &PushedBatch| batch.splits.iter().any(|split| times.get(split) == Some(&1));
        let repeated = |one: &WorkerIncarnation| {
            let (last, all) = (one.acknowledged().filter(|(_, batch)| is_counted(batch)).last(), one.samples_from(0));
            last.map_or(all, |(seq, _)| all.min(shuffled + one.samples_from(*seq)))
        };
        self.unended().map(repeated).sum()
    }

    /// How many of the first `workers` ended with no network, though nothing was done to them, comes second.
    pub(crate) fn networks(&self, workers: u32) -> (BTreeSet<u64>, usize) {
        let newest = || self.incarnations.iter().filter(|(key, _)| self.is_newest(**key)).map(|(_, one)| one);
        let ended_or_hit =
            |worker: &u32| newest().any(|one| one.worker == *worker && (one.network.is_some() || one.is_hit));
        let missing = (0..workers).filter(|worker| !ended_or_hit(worker)).count();
        (newest().filter_map(|one| one.network).collect(), missing)
    }
}

impl WorkerIncarnation {
    /// Batches with no unacknowledged one before them.
    fn acknowledged(&self) -> impl Iterator<Item = (&u64, &PushedBatch)> {
        self.batches.iter().take_while(|(_, batch)| batch.is_acknowledged)
    }

    fn splits(&self) -> impl Iterator<Item = u64> {
        self.acknowledged().flat_map(|(_, batch)| batch.splits.iter().copied())
    }

    fn samples_from(&self, seq: u64) -> u64 {
        let batches = self.batches.range(seq..).map(|(_, batch)| batch);
        batches.filter(|batch| batch.is_acknowledged).map(|batch| batch.samples).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of 10 samples, each with the end of a split of its own number.
    fn push(log: &mut IncarnationLog, key: IncarnationKey, batches: std::ops::Range<u64>) {
        log.join(key, key.0 as u32);
        for seq in batches {
            log.start(key, &StartedPush { seq, step: seq, samples: 10, splits: vec![seq], tables: Vec::new() });
            log.finish(key, seq);
        }
    }

    /// The writer is the same for all processes in a worker's place, and a fault excuses only those that it hit.
    #[test]
    fn the_living_replacement_of_a_killed_worker_answers_for_its_pushes() {
        let mut log = IncarnationLog::default();
        push(&mut log, (1, 1), 0..3);
        log.hit(1);
        assert!(log.may_be_lost((1, 1)), "it was killed");
        push(&mut log, (1, 2), 2..4);
        assert!(log.may_be_lost((1, 1)) && !log.may_be_lost((1, 2)));
        log.hit(1);
        assert!(log.may_be_lost((1, 2)), "it is stopped, and may be replaced");
        log.note_network((1, 2), 7);
        assert!(!log.may_be_lost((1, 2)), "it lived to the end");
        assert!(!log.may_be_lost((2, 1)), "the log does not know it");
        log.go_back();
        push(&mut log, (1, 1), 0..1);
        assert!(!log.may_be_lost((1, 1)), "a process of before the return was hit");
    }

    #[test]
    fn a_lost_worker_repeats_at_most_what_it_pushed_after_its_last_complete_split() {
        let mut log = IncarnationLog::default();
        push(&mut log, (1, 1), 0..5);
        push(&mut log, (2, 1), 5..9);
        log.note_network((2, 1), 7);
        // Others completed splits 3 and 4 as well: split 2 was the last one that counted.
        push(&mut log, (1, 2), 3..5);
        log.note_network((1, 2), 7);
        assert_eq!((log.samples(), log.splits().len(), log.lost()), (110, 9, (1, 50)));
        assert_eq!(log.most_repeated(0), 30, "batches 2, 3 and 4: the first may begin the next split");
        assert_eq!((log.most_repeated(15), log.most_repeated(1000)), (45, 50));
        // A batch that was not acknowledged completes nothing, and neither does one after it.
        log.start((1, 3), &StartedPush { seq: 20, samples: 10, splits: vec![20], ..StartedPush::default() });
        push(&mut log, (1, 3), 21..22);
        assert_eq!((log.samples(), log.splits().len()), (120, 9));
        assert_eq!(log.most_repeated(0), 40, "of the third process all that it pushed");
    }

    #[test]
    fn a_run_that_went_back_has_each_batch_once() {
        let mut log = IncarnationLog::default();
        push(&mut log, (1, 1), 0..5);
        log.start((1, 1), &StartedPush { seq: 5, step: 5, samples: 10, ..StartedPush::default() });
        log.go_back();
        assert_eq!((log.samples(), log.lost()), (50, (0, 0)));
        push(&mut log, (1, 1), 3..6);
        assert_eq!((log.samples(), log.splits().len()), (60, 6));
    }

    #[test]
    fn every_living_worker_tells_its_network() {
        let mut log = IncarnationLog::default();
        (0..2).for_each(|worker| push(&mut log, (worker, 1), 0..2));
        log.note_network((0, 1), 7);
        assert_eq!(log.networks(2), (BTreeSet::from([7]), 1));
        push(&mut log, (1, 2), 2..3);
        log.note_network((1, 2), 8);
        assert_eq!(log.networks(2), (BTreeSet::from([7, 8]), 0));
    }
}
