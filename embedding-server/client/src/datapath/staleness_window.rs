//! The staleness window: how many batches may be between lookup and acknowledgement.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    #[must_use]
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

    #[must_use]
    pub fn batch_count(&self) -> usize {
        self.inside.load(Ordering::Acquire)
    }
}

impl WindowPermit {
    /// How many earlier batches had unacknowledged gradients when this batch entered. At most τ.
    #[must_use]
    pub fn staleness(&self) -> usize {
        self.staleness
    }
}

impl Drop for WindowPermit {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Ordering::AcqRel);
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
}
