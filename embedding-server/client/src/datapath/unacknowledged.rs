//! How far pushes run ahead of the oldest that is not acknowledged.
//!
//! The staleness window has a place for each batch under way and none for their distance: while one push is tried again
//! and again, the places of the others are used anew. A server remembers the last [`PUSH_WINDOW`] numbers of a writer and
//! refuses older ones, for it cannot tell a retry of them from a first try. So a push waits here until the oldest one is
//! near enough.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use zagros_protocol::PUSH_WINDOW;

/// Numbers of pushes that are under way, of one writer.
#[derive(Debug, Default)]
pub(super) struct Unacknowledged {
    numbers: Arc<Mutex<BTreeSet<u64>>>,
    /// Told whenever one ends.
    ended: watch::Sender<()>,
}

/// A push that is under way while this lives.
#[derive(Debug)]
pub(super) struct Begun {
    number: u64,
    numbers: Arc<Mutex<BTreeSet<u64>>>,
    ended: watch::Sender<()>,
}

impl Unacknowledged {
    /// Waits until no push under way is older than a server remembers beside this one. As each of them has a deadline, the
    /// wait has one (invariant WT-1).
    pub(super) async fn begin(&self, number: u64) -> Begun {
        let mut ended = self.ended.subscribe();
        while !self.try_begin(number) {
            // The sender lives as long as this.
            let _ = ended.changed().await;
        }
        Begun { number, numbers: Arc::clone(&self.numbers), ended: self.ended.clone() }
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

impl Drop for Begun {
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
        let pushes = Unacknowledged::default();
        let oldest = pushes.begin(5).await;
        let near = pushes.begin(5 + PUSH_WINDOW - 1).now_or_never().expect("the server remembers both");
        drop(near);
        let mut far = Box::pin(pushes.begin(5 + PUSH_WINDOW));
        assert!((&mut far).now_or_never().is_none(), "a retry of the oldest would be refused");
        drop(oldest);
        let far = far.now_or_never().expect("nothing is under way");
        assert!(pushes.begin(6).now_or_never().is_some(), "an older number waits for nothing");
        drop(far);
    }
}
