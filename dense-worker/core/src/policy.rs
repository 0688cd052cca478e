//! One policy per mode: how a worker trains beside others.

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
    #[must_use]
    pub fn regroups_after_loss(self) -> bool {
        matches!(self, Self::SynchronousGroup { in_turns: false } | Self::AsynchronousWorkers)
    }
}
