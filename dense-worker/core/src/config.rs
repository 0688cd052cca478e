//! What the loop knows of the job: its settings, one policy per mode, how a worker trains beside others, and early stopping: which evaluated
//! state is the best, and when the search for a better one ends.

use serde::{Deserialize, Serialize};

/// The settings that decisions depend on. They do not change during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopConfig {
    pub policy: TrainingPolicy,
    /// The batches come from memory: there are no splits, no checkpoint to resume from and no second group.
    pub from_memory: bool,
    pub epochs: u32,
    /// Steps after which training ends.
    pub max_steps: Option<u64>,
    pub evaluate_every: Option<u64>,
    pub early_stop: Option<EarlyStopRule>,
    /// There is a held-out part to score while training.
    pub has_held_out: bool,
    /// Every epoch but the first begins with new rows.
    pub resets_rows: bool,
    pub keeps_checkpoints: bool,
    /// Steps between two checkpoints, where this worker writes them.
    pub checkpoint_every: Option<u64>,
    /// This process has taken the member slot of an earlier one.
    pub is_replacement: bool,
}

impl LoopConfig {
    pub(crate) fn steps_left(&self, steps: u64) -> u64 {
        self.max_steps.map_or(u64::MAX, |most| most.saturating_sub(steps))
    }

    pub(crate) fn is_evaluation_due(&self, step: u64) -> bool {
        self.evaluate_every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Whether a checkpoint comes after step number `step`: by its number, or because the time for one has come.
    pub(crate) fn is_checkpoint_due(&self, step: u64, by_time: bool) -> bool {
        by_time || self.checkpoint_every.is_some_and(|every| step.is_multiple_of(every))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingPolicy {
    OneWorker {
        /// Mode `sync`: a batch whose lookup was counted is trained on, whatever is asked meanwhile.
        in_turns: bool,
    },
    SynchronousGroup {
        /// Mode `sync`: ranks push one after another, and no rank looks up before all have pushed. Else mode `hybrid`.
        in_turns: bool,
    },
    /// Mode `async`: each worker makes its own steps. All come to barriers.
    AsynchronousWorkers,
}

impl TrainingPolicy {
    pub fn is_group(self) -> bool {
        matches!(self, Self::SynchronousGroup { .. })
    }

    pub fn is_asynchronous(self) -> bool {
        self == Self::AsynchronousWorkers
    }

    /// Whether a batch whose lookup was counted is trained on, whatever is asked meanwhile.
    pub fn is_in_turns(self) -> bool {
        matches!(self, Self::OneWorker { in_turns: true } | Self::SynchronousGroup { in_turns: true })
    }

    /// Whether the other workers go on in another group after one of them is lost.
    pub(crate) fn regroups_after_loss(self) -> bool {
        matches!(self, Self::SynchronousGroup { in_turns: false } | Self::AsynchronousWorkers)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopRule {
    /// Evaluations in a row without improvement after which training ends.
    pub patience: u32,
    /// Difference by which a merit must be greater to count as an improvement.
    pub min_delta: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatienceUse {
    Spent,
    /// It does not: it follows another one so soon that little can have changed.
    Kept,
}

impl PatienceUse {
    /// The end of an epoch may come close to another evaluation: less than half of `every` steps after it spends nothing.
    pub(crate) fn after_steps(steps: Option<u64>, every: Option<u64>) -> Self {
        let is_soon = matches!((steps, every), (Some(steps), Some(every)) if steps < every.div_ceil(2));
        if is_soon { Self::Kept } else { Self::Spent }
    }
}

/// The measure of an evaluation that states are compared by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredState {
    pub value: f64,
    /// The same, so that more is better: a logloss has the other sign.
    pub merit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestState {
    pub step: u64,
    pub value: f64,
    pub merit: f64,
}

/// What the evaluations so far say. It is part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchState {
    best: Option<BestState>,
    /// Merit that a better evaluation must exceed by `min_delta`.
    reference: Option<f64>,
    /// Evaluations in a row that did not.
    waited: u32,
}

impl SearchState {
    /// An evaluation is the best if it is better by however little. One whose measure is not defined is never better.
    pub fn note_evaluation(
        &mut self,
        rule: EarlyStopRule,
        step: u64,
        measured: Option<MeasuredState>,
        patience: PatienceUse,
    ) {
        if let Some(MeasuredState { value, merit }) = measured
            && self.best.is_none_or(|best| merit > best.merit)
        {
            self.best = Some(BestState { step, value, merit });
        }
        // Slow progress adds up: the reference stays until it is exceeded by all of `min_delta`.
        let exceeds = |merit: f64| self.reference.is_none_or(|reference| merit > reference + rule.min_delta);
        let merit = measured.map(|measured| measured.merit);
        if merit.is_some_and(exceeds) {
            (self.reference, self.waited) = (merit, 0);
        } else if patience == PatienceUse::Spent {
            self.waited += 1;
        }
    }

    pub fn is_over(&self, rule: EarlyStopRule) -> bool {
        self.waited >= rule.patience
    }

    /// The best evaluation; `None` while no measure was defined.
    pub fn best_state(&self) -> Option<BestState> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(merit: f64) -> Option<MeasuredState> {
        Some(MeasuredState { value: merit.abs(), merit })
    }

    fn over_after(patience: u32, min_delta: f64, merits: &[Option<MeasuredState>]) -> (Option<usize>, Option<u64>) {
        let (rule, mut search) = (EarlyStopRule { patience, min_delta }, SearchState::default());
        for (number, merit) in merits.iter().enumerate() {
            search.note_evaluation(rule, 100 * (number as u64 + 1), *merit, PatienceUse::Spent);
            if search.is_over(rule) {
                return (Some(number + 1), search.best_state().map(|best| best.step));
            }
        }
        (None, search.best_state().map(|best| best.step))
    }

    #[test]
    fn it_is_over_after_as_many_evaluations_without_a_better_one_as_patience_lasts() {
        let aucs = [0.7, 0.8, 0.79, 0.8, 0.9].map(measured);
        assert_eq!(over_after(2, 0.0, &aucs), (Some(4), Some(200)));
        assert_eq!(over_after(3, 0.0, &aucs), (None, Some(500)));
    }

    #[test]
    fn too_little_is_not_better_but_the_best_state_all_the_same() {
        assert_eq!(over_after(2, 1e-4, &[0.9, 0.90005, 0.90009].map(measured)), (Some(3), Some(300)));
        // Slow progress that adds up is progress.
        assert_eq!(over_after(2, 1e-4, &[0.9, 0.90006, 0.90012].map(measured)), (None, Some(300)));
    }

    #[test]
    fn of_negative_merits_the_greater_is_better() {
        assert_eq!(over_after(1, 0.0, &[-0.5, -0.4, -0.45].map(measured)), (Some(3), Some(200)));
    }

    #[test]
    fn what_is_not_defined_is_never_better() {
        assert_eq!(over_after(2, 0.0, &[None, None, measured(0.9)]), (Some(2), None));
    }

    #[test]
    fn an_evaluation_right_after_another_one_spends_no_patience_and_may_be_the_best() {
        assert_eq!(PatienceUse::after_steps(Some(1), Some(40)), PatienceUse::Kept);
        assert_eq!(PatienceUse::after_steps(Some(19), Some(40)), PatienceUse::Kept);
        assert_eq!(PatienceUse::after_steps(Some(20), Some(40)), PatienceUse::Spent);
        assert_eq!(PatienceUse::after_steps(Some(1), None), PatienceUse::Spent, "one evaluation an epoch");
        assert_eq!(PatienceUse::after_steps(None, Some(40)), PatienceUse::Spent, "the first evaluation");
        let (rule, mut search) = (EarlyStopRule { patience: 1, min_delta: 0.0 }, SearchState::default());
        search.note_evaluation(rule, 78, measured(0.8), PatienceUse::Spent);
        search.note_evaluation(rule, 79, measured(0.7), PatienceUse::Kept);
        assert!(!search.is_over(rule));
        search.note_evaluation(rule, 80, measured(0.9), PatienceUse::Kept);
        assert_eq!(search.best_state().map(|best| best.step), Some(80));
        search.note_evaluation(rule, 120, measured(0.8), PatienceUse::Spent);
        assert!(search.is_over(rule));
    }
}
