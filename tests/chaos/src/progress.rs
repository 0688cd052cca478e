//! How far each dense worker is, and whether it has recovered from a fault.

use std::collections::BTreeMap;

use crate::ledger::PushKey;

/// The newest push of each worker, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerProgress {
    pub(crate) newest: BTreeMap<u32, PushNumber>,
    pub(crate) steps: u64,
    /// How often every process was started again.
    starts: u32,
}

/// Orders the pushes of a worker: by the start of all processes, by its own process, by number.
type PushNumber = (u32, u32, u64);

/// The moment of a fault, as the workers' progress shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgressMoment(BTreeMap<u32, PushNumber>);

impl WorkerProgress {
    pub(crate) fn sent(&mut self, worker: u32, key: PushKey) {
        let newest = self.newest.get(&worker).copied();
        let number = (self.starts, key.incarnation, key.seq);
        if newest.is_none_or(|newest| number > newest) {
            self.newest.insert(worker, number);
            self.steps += 1;
        }
    }

    /// Every process is started again. Their incarnations and numbers start anew.
    pub(crate) fn start_again(&mut self) {
        self.starts += 1;
    }

    pub(crate) fn moment(&self) -> ProgressMoment {
        ProgressMoment(self.newest.clone())
    }

    /// A batch is looked up once at most `staleness` pushes before it are unanswered: a push that many and one more
    /// after the newest of `moment` proves that it was looked up after it.
    pub(crate) fn is_past(&self, moment: &ProgressMoment, staleness: u64) -> bool {
        moment.0.iter().all(|(worker, then)| {
            let now = self.newest.get(worker);
            let (start, incarnation, seq) = *then;
            now.is_some_and(|now| (now.0, now.1) > (start, incarnation) || now.2 > seq + staleness + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(incarnation: u32, seq: u64) -> PushKey {
        PushKey { writer: 9, incarnation, seq }
    }

    #[test]
    fn a_step_counts_as_new_only_if_its_lookup_came_after_the_fault() {
        let mut progress = WorkerProgress::default();
        progress.sent(0, key(1, 4));
        progress.sent(1, key(1, 4));
        let moment = progress.moment();
        // Looked up before: the window of staleness 2 was open.
        for seq in 5..=7 {
            progress.sent(0, key(1, seq));
            progress.sent(1, key(1, seq));
            assert!(!progress.is_past(&moment, 2), "{seq}");
        }
        progress.sent(0, key(1, 8));
        assert!(!progress.is_past(&moment, 2), "worker 1 has not");
        // A new process of worker 1.
        progress.sent(1, key(2, 0));
        assert!(progress.is_past(&moment, 2));
        assert_eq!((progress.steps, progress.newest.len()), (10, 2));
        let moment = progress.moment();
        progress.start_again();
        progress.sent(0, key(1, 0));
        assert!(!progress.is_past(&moment, 2), "worker 1 has not started again");
        progress.sent(1, key(1, 0));
        assert!(progress.is_past(&moment, 2));
    }

    #[test]
    fn a_repeated_push_is_no_step() {
        let mut progress = WorkerProgress::default();
        progress.sent(0, key(1, 4));
        progress.sent(0, key(1, 4));
        progress.sent(0, key(1, 3));
        assert_eq!(progress.steps, 1);
    }
}
