//! What the loop knows of the job: its settings, and one policy per mode, how a worker trains beside others.

use crate::early_stopping::EarlyStopRule;

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
    #[must_use]
    pub fn is_group(self) -> bool {
        matches!(self, Self::SynchronousGroup { .. })
    }

    #[must_use]
    pub fn is_asynchronous(self) -> bool {
        self == Self::AsynchronousWorkers
    }

    /// Whether a batch whose lookup was counted is trained on, whatever is asked meanwhile.
    #[must_use]
    pub fn is_in_turns(self) -> bool {
        matches!(self, Self::OneWorker { in_turns: true } | Self::SynchronousGroup { in_turns: true })
    }

    /// Whether the other workers go on in another group after one of them is lost.
    pub(crate) fn regroups_after_loss(self) -> bool {
        matches!(self, Self::SynchronousGroup { in_turns: false } | Self::AsynchronousWorkers)
    }
}
