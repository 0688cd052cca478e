//! What is known of a fault that was made.

use std::time::Duration;

use crate::schedule::PlannedFault;

#[derive(Clone, Debug)]
pub(crate) struct FaultRecord {
    pub(crate) fault: PlannedFault,
    /// Since the first round began.
    pub(crate) at: Duration,
    /// When each process that was killed had its successor.
    pub(crate) back: Option<Duration>,
    /// When every worker had made a step that was looked up after the fault. `None` if the run ended before.
    pub(crate) next_step: Option<Duration>,
    /// Steps that were made while the coordinator was away.
    pub(crate) steps_without_coordinator: Option<u64>,
}
