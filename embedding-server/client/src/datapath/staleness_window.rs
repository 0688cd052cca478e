//! The staleness window: how many batches may be between lookup and acknowledgement. Beside it, pushes in flight.
//!
//! No push in flight has a number more than [`PUSH_WINDOW`] above the oldest push that is not acknowledged.
//! The staleness window limits the number of batches in flight, but not the difference of their numbers: while one push
//! is retried, later batches continue. A server remembers the last [`PUSH_WINDOW`] numbers of a writer. It refuses
//! older numbers, because it cannot tell a retry from a first try. A push therefore waits here while its number is too
//! far above the oldest.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use zagros_protocol::PUSH_WINDOW;

/// Allows at most τ + 1 batches between lookup and acknowledgement. A lookup therefore misses the gradients of at most
/// τ earlier batches (invariant DP-4). τ = 0 is strictly sequential.
#[derive(Clone, Debug)]
pub struct StalenessWindow {
    places: Arc<Semaphore>,
    inside: Arc<AtomicUsize>,
}

/// A batch's place in the window. Dropping it frees the place. The batch keeps it until its push is acknowledged.
#[derive(Debug)]
pub struct WindowPermit {
    staleness: usize,
    inside: Arc<AtomicUsize>,
    /// Freed after [`WindowPermit::drop`] has decreased the count, so the next batch reads the right count.
    _place: OwnedSemaphorePermit,
}

impl StalenessWindow {
    pub fn new(staleness: usize) -> Self {
        let places = staleness.saturating_add(1).min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(places)), inside: Arc::default() }
    }

    /// Waits for a place. Batches get places in the order in which they ask. The wait has no timeout of its own: the
    /// push that frees a place has a deadline, and the caller also waits for shutdown.
    pub async fn acquire_permit(&self) -> WindowPermit {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        let staleness = self.inside.fetch_add(1, Ordering::AcqRel);
        WindowPermit { staleness, inside: Arc::clone(&self.inside), _place: place }
    }

    pub fn batch_count(&self) -> usize {
        self.inside.load(Ordering::Acquire)
    }
}

impl WindowPermit {
    /// How many earlier batches had unacknowledged gradients when this batch entered. At most τ.
    pub fn staleness(&self) -> usize {
        self.staleness
    }
}

impl Drop for WindowPermit {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct PushesInFlight {
    numbers: Arc<Mutex<BTreeSet<u64>>>,
    ended: watch::Sender<()>,
}

/// A push. It is in flight while this value lives.
#[derive(Debug)]
pub(super) struct PushInFlight {
    number: u64,
    all: PushesInFlight,
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
        PushInFlight { number, all: self.clone() }
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
        self.all.numbers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        self.all.ended.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_permit_reports_the_number_of_earlier_batches() {
        let window = StalenessWindow::new(2);
        let (first, second, third) =
            (window.acquire_permit().await, window.acquire_permit().await, window.acquire_permit().await);
        assert_eq!([first.staleness(), second.staleness(), third.staleness()], [0, 1, 2]);
        assert!(window.acquire_permit().now_or_never().is_none(), "a fourth batch got in");
        drop(second);
        let fourth = window.acquire_permit().now_or_never().expect("a place was free");
        assert_eq!((fourth.staleness(), window.batch_count()), (2, 3));
    }

    #[tokio::test]
    async fn without_staleness_batches_are_strictly_sequential() {
        let window = StalenessWindow::new(0);
        for _ in 0..3 {
            let permit = window.acquire_permit().now_or_never().expect("the window was empty");
            assert_eq!(permit.staleness(), 0);
            assert!(window.acquire_permit().now_or_never().is_none(), "a second batch got in");
        }
    }

    /// Invariant DP-4.
    #[tokio::test(start_paused = true)]
    async fn no_batch_is_ever_staler_than_the_bound() {
        const BOUND: usize = 3;
        let window = StalenessWindow::new(BOUND);
        let batches = (0..200_u64).map(|batch| {
            let window = window.clone();
            tokio::spawn(async move {
                let permit = window.acquire_permit().await;
                let inside = window.batch_count();
                // The acknowledgements come in another order than the lookups.
                tokio::time::sleep(Duration::from_millis(batch * 7 % 13)).await;
                (permit.staleness(), inside)
            })
        });
        let seen: Vec<_> = futures::future::join_all(batches).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(seen.iter().map(|(staleness, _)| *staleness).max(), Some(BOUND));
        assert_eq!(seen.iter().map(|(_, inside)| *inside).max(), Some(BOUND + 1));
        assert_eq!(window.batch_count(), 0);
    }

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
