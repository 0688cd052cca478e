//! Pushes in flight: no push has a number more than [`PUSH_WINDOW`] above the oldest push that is not acknowledged.
//!
//! The staleness window limits the number of batches in flight, but not the difference of their numbers: while one push
//! is retried, later batches continue. A server remembers the last [`PUSH_WINDOW`] numbers of a writer. It refuses
//! older numbers, because it cannot tell a retry from a first try. A push therefore waits here while its number is too
//! far above the oldest.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use zagros_protocol::PUSH_WINDOW;

#[derive(Debug, Default)]
pub(super) struct PushesInFlight {
    numbers: Arc<Mutex<BTreeSet<u64>>>,
    /// Notified when a push ends.
    ended: watch::Sender<()>,
}

/// A push. It is in flight while this value lives.
#[derive(Debug)]
pub(super) struct PushInFlight {
    number: u64,
    numbers: Arc<Mutex<BTreeSet<u64>>>,
    ended: watch::Sender<()>,
}

impl PushesInFlight {
    /// Waits until a server that has seen `number` still remembers the oldest push in flight. Each push has a deadline,
    /// so this wait ends (invariant WT-1).
    pub(super) async fn begin_push(&self, number: u64) -> PushInFlight {
        let mut ended = self.ended.subscribe();
        while !self.try_begin(number) {
            // The sender lives as long as `self`, so this cannot fail.
            let _ = ended.changed().await;
        }
        PushInFlight { number, numbers: Arc::clone(&self.numbers), ended: self.ended.clone() }
    }

    fn try_begin(&self, number: u64) -> bool {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_near = numbers.first().is_none_or(|oldest| number < oldest.saturating_add(PUSH_WINDOW));
        if is_near {
            numbers.insert(number);
        }
        is_near
    }
}

impl Drop for PushInFlight {
    fn drop(&mut self) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        self.ended.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_push_waits_for_one_that_would_be_forgotten_and_for_no_other() {
        let pushes = PushesInFlight::default();
        let oldest = pushes.begin_push(5).await;
        let near = pushes.begin_push(5 + PUSH_WINDOW - 1).now_or_never().expect("the server remembers both");
        drop(near);
        let mut far = Box::pin(pushes.begin_push(5 + PUSH_WINDOW));
        assert!((&mut far).now_or_never().is_none(), "a retry of the oldest would be refused");
        drop(oldest);
        let far = far.now_or_never().expect("nothing is under way");
        assert!(pushes.begin_push(6).now_or_never().is_some(), "an older number waits for nothing");
        drop(far);
    }
}
