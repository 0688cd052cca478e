//! Barriers of asynchronous workers that the coordinator calls.

use tokio::sync::watch;
use tokio::time::sleep_until;
use zagros_coordinator_client::MemberView;

#[derive(Debug)]
pub(crate) struct BarrierCalls {
    view: watch::Receiver<MemberView>,
}

impl BarrierCalls {
    pub(crate) fn new(view: watch::Receiver<MemberView>) -> Self {
        Self { view }
    }

    /// Waits until it is time for a barrier with a number above `attended`. Dropped while it waits, it loses nothing.
    pub(crate) async fn wait_until_due(&mut self, attended: u64) {
        let is_next = |view: &MemberView| view.barrier.is_some_and(|barrier| barrier.number > attended);
        let called = self.view.wait_for(is_next).await.ok().and_then(|view| view.barrier);
        match called {
            Some(barrier) => sleep_until(barrier.at).await,
            // The membership is gone, so no call comes.
            None => std::future::pending().await,
        }
    }

    pub(super) fn newest_heard(&self) -> u64 {
        self.view.borrow().barrier.map_or(0, |barrier| barrier.number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::{Instant, sleep};
    use zagros_coordinator_client::AnnouncedBarrier;
    use zagros_worker_core::{BarrierDecision, BarrierLog};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_goes_to_each_barrier_once_and_not_before_its_time() {
        use BarrierDecision::{Checkpoint, EpochOver};
        let (call_to, view) = watch::channel(MemberView::default());
        let (mut calls, mut log) = (BarrierCalls::new(view), BarrierLog::default());
        assert!(calls.wait_until_due(log.last_attended()).now_or_never().is_none());
        let started = Instant::now();
        let call = |number, at| call_to.send_modify(|view| view.barrier = Some(AnnouncedBarrier { number, at }));
        call(1, started + Duration::from_secs(2));
        calls.wait_until_due(log.last_attended()).await;
        assert_eq!((started.elapsed(), calls.newest_heard(), log.next_number()), (Duration::from_secs(2), 1, 1));
        log.attend(Checkpoint, 1);
        // The coordinator goes on reporting it.
        sleep(Duration::from_secs(1)).await;
        assert!(calls.wait_until_due(log.last_attended()).now_or_never().is_none());
        // The end of an epoch comes before the next.
        call(2, Instant::now() + Duration::from_secs(1));
        log.attend(EpochOver, 2);
        calls.wait_until_due(log.last_attended()).await;
        log.attend(Checkpoint, 2);
        assert!(calls.wait_until_due(log.last_attended()).now_or_never().is_none());
    }
}
