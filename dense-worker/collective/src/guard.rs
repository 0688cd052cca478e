//! An end of a wait from outside.
//!
//! A call waits for the other ranks until the group's timeout. A caller may learn earlier that one of them will not come,
//! because its lease expired or the run is over. It then ends the wait with a [`GroupInterrupt`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ends the calls of one group on this rank: the present one, within a fraction of a second, and each later one.
#[derive(Clone, Debug, Default)]
pub struct GroupInterrupt(Arc<AtomicBool>);

impl GroupInterrupt {
    /// The reason in the error of an interrupted call.
    pub const REASON: &str = "it was interrupted: a rank is known to be gone, or the run to be over";

    /// Ends the calls. A second call changes nothing.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// After a failed call, the other ranks have this time to say that they are alive. Their own call fails at the same time, because
/// the group's connections are closed by then.
pub const ROLL_CALL: Duration = Duration::from_secs(2);

/// How long one wait lasts. After each wait the call checks whether it was interrupted.
pub const WAIT_SLICE: Duration = Duration::from_millis(50);
