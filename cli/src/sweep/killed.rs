//! Trials whose process was killed: as a rule because memory ran out, which trials side by side use up together.

use std::collections::BTreeSet;

use zagros_sweep::TrialTask;

/// The trials that were killed beside others. Each is trained once more, alone, before it counts as failed.
#[derive(Debug, Default)]
pub(super) struct KilledTrials {
    /// Those that have not started again.
    waiting: Vec<TrialTask>,
    /// All of them. They run alone from now on.
    known: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStart {
    /// A trial that was killed, alone.
    Alone(TrialTask),
    /// Nothing, until a trial ends.
    Wait,
    Any,
}

impl KilledTrials {
    /// Notes that a trial was killed while so many others ran. Returns whether it is trained again.
    pub(super) fn note(&mut self, task: TrialTask, others: usize) -> bool {
        let again = others > 0 && self.known.insert(task.trial);
        self.waiting.extend(again.then_some(task));
        again
    }

    /// What starts beside these trials.
    pub(super) fn next(&mut self, mut running: impl Iterator<Item = usize>) -> NextStart {
        match running.next() {
            None => self.waiting.pop().map_or(NextStart::Any, NextStart::Alone),
            Some(first) if self.known.contains(&first) || !self.waiting.is_empty() => NextStart::Wait,
            Some(_) => NextStart::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_was_killed_beside_others_is_trained_once_more_alone() {
        let task = |trial| TrialTask { trial, rung: 0 };
        let mut killed = KilledTrials::default();
        assert_eq!(killed.next([3, 4].into_iter()), NextStart::Any);
        assert!(killed.note(task(3), 1));
        assert_eq!(killed.next([4].into_iter()), NextStart::Wait, "trial 4 ends first");
        assert_eq!(killed.next([].into_iter()), NextStart::Alone(task(3)));
        assert_eq!(killed.next([3].into_iter()), NextStart::Wait, "it is alone");
        assert!(!killed.note(task(3), 0), "its own values need too much memory");
        assert_eq!(killed.next([].into_iter()), NextStart::Any);
        assert!(!killed.note(task(5), 0), "no other trial used memory");
    }
}
