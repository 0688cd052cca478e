//! The staleness window: how many batches may be between their lookup and the acknowledgement of their push.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets at most τ + 1 batches be between lookup and acknowledgement, so that a lookup misses the gradients of at most τ
/// earlier batches (invariant DP-4). τ = 0 is strictly sequential.
#[derive(Clone, Debug)]
pub struct Window {
    places: Arc<Semaphore>,
    inside: Arc<AtomicUsize>,
}

/// A batch's place in the window: carried along with it, dropped once its push is acknowledged.
#[derive(Debug)]
pub struct Permit {
    staleness: usize,
    inside: Arc<AtomicUsize>,
    /// Freed after [`Permit::drop`] has counted this batch out: the next one to enter counts right.
    _place: OwnedSemaphorePermit,
}

impl Window {
    /// For τ = `staleness`.
    #[must_use]
    pub fn new(staleness: usize) -> Self {
        let places = staleness.saturating_add(1).min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(places)), inside: Arc::default() }
    }

    /// Waits for a place; served in the order of asking. It lasts as long as the oldest batch takes: whoever
    /// waits listens to shutdown beside it, and the push that frees a place has a deadline of its own.
    pub async fn enter(&self) -> Permit {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        let staleness = self.inside.fetch_add(1, Ordering::AcqRel);
        Permit { staleness, inside: Arc::clone(&self.inside), _place: place }
    }

    /// Batches inside now.
    #[must_use]
    pub fn inside(&self) -> usize {
        self.inside.load(Ordering::Acquire)
    }
}

impl Permit {
    /// Earlier batches whose gradients were not acknowledged when this one entered: at most τ.
    #[must_use]
    pub fn staleness(&self) -> usize {
        self.staleness
    }
}

impl Drop for Permit {
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
    async fn a_permit_tells_how_many_batches_were_before_it() {
        let window = Window::new(2);
        let (first, second, third) = (window.enter().await, window.enter().await, window.enter().await);
        assert_eq!([first.staleness(), second.staleness(), third.staleness()], [0, 1, 2]);
        assert!(window.enter().now_or_never().is_none(), "a fourth batch got in");
        drop(second);
        let fourth = window.enter().now_or_never().expect("a place was free");
        assert_eq!((fourth.staleness(), window.inside()), (2, 3));
    }

    #[tokio::test]
    async fn without_staleness_batches_are_strictly_sequential() {
        let window = Window::new(0);
        for _ in 0..3 {
            let permit = window.enter().now_or_never().expect("the window was empty");
            assert_eq!(permit.staleness(), 0);
            assert!(window.enter().now_or_never().is_none(), "a second batch got in");
        }
    }

    /// Invariant DP-4.
    #[tokio::test(start_paused = true)]
    async fn no_batch_is_ever_staler_than_the_bound() {
        const BOUND: usize = 3;
        let window = Window::new(BOUND);
        let batches = (0..200_u64).map(|batch| {
            let window = window.clone();
            tokio::spawn(async move {
                let permit = window.enter().await;
                let inside = window.inside();
                // Acknowledgements come in another order than the lookups started.
                tokio::time::sleep(Duration::from_millis(batch * 7 % 13)).await;
                (permit.staleness(), inside)
            })
        });
        let seen: Vec<_> = futures::future::join_all(batches).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(seen.iter().map(|(staleness, _)| *staleness).max(), Some(BOUND));
        assert_eq!(seen.iter().map(|(_, inside)| *inside).max(), Some(BOUND + 1));
        assert_eq!(window.inside(), 0);
    }
}
