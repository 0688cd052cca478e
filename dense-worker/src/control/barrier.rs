//! Barriers of workers that step apart, in mode `async`: to cut a checkpoint, to end an epoch, to stop.
//!
//! Workers apart have no step in common to agree in. One asks the coordinator for a barrier; all hear from their next heartbeats
//! when it is, finish the step that they are in by then, and come, also those that wait for data. There each says what it
//! came for, and all do the same next (invariant AS-1).

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep_until;
use zagros_coordinator_client::MemberView;

use super::apart::Account;
use super::train::Trainer;
use crate::error::WorkerError;

/// Barriers so far, and the next one.
#[derive(Debug)]
pub(crate) struct Barriers {
    /// What the coordinator tells.
    view: watch::Receiver<MemberView>,
    /// Number of the last.
    attended: u64,
    /// All have agreed to stop: there will be no other.
    parted: bool,
}

/// What a worker comes to a barrier for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Errand {
    /// It was called from the midst of training.
    Checkpoint,
    /// It has nothing more to train on in this epoch.
    EpochEnd,
    /// It was asked to stop.
    Stop,
}

/// What all do after a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// Cut a checkpoint and go on.
    Cut,
    /// The epoch is over for all.
    EpochOver,
    /// Cut the last checkpoint.
    Stop,
}

/// What a worker says at a barrier.
#[derive(Serialize, Deserialize)]
struct Card {
    errand: Errand,
    /// Number of the newest barrier that it has heard of.
    called: u64,
    account: Account,
}

impl Barriers {
    pub(crate) fn new(view: watch::Receiver<MemberView>) -> Self {
        Self { view, attended: 0, parted: false }
    }

    /// There will be none: nobody comes to the end of an epoch.
    pub(super) fn close(&mut self) {
        self.parted = true;
    }

    /// Number of the one that is to be asked for.
    fn next(&self) -> u64 {
        self.attended + 1
    }

    /// Waits until it is time for a barrier that this worker has not been at. Dropped while it waits, it loses nothing.
    pub(super) async fn due(&mut self) {
        let attended = self.attended;
        let is_next = |view: &MemberView| view.barrier.is_some_and(|barrier| barrier.number > attended);
        let called = self.view.wait_for(is_next).await.ok().and_then(|view| view.barrier);
        match called {
            Some(barrier) => sleep_until(barrier.at).await,
            // The membership is gone, so nobody will call.
            None => std::future::pending().await,
        }
    }

    fn called(&self) -> u64 {
        self.view.borrow().barrier.map_or(0, |barrier| barrier.number)
    }

    /// The barrier that someone was called to has been for all, also for those who came for another reason. One that is only
    /// called yet when an epoch ends is still to come.
    fn attend(&mut self, cards: &[Card]) -> Resolution {
        let resolution = resolve(cards.iter().map(|card| card.errand));
        if resolution == Resolution::Cut {
            self.attended = cards.iter().map(|card| card.called).fold(self.attended, u64::max);
        }
        self.parted |= resolution == Resolution::Stop;
        resolution
    }
}

/// An epoch is over once all came to end it; until then those who did come again.
fn resolve(errands: impl Iterator<Item = Errand> + Clone) -> Resolution {
    let anyone = |errand| errands.clone().any(|other| other == errand);
    match (anyone(Errand::Stop), anyone(Errand::Checkpoint)) {
        (true, _) => Resolution::Stop,
        (false, true) => Resolution::Cut,
        (false, false) => Resolution::EpochOver,
    }
}

impl Trainer {
    /// Whether this worker steps apart from others, whom it has not parted from.
    pub(super) fn may_be_called(&self) -> bool {
        self.is_apart() && !self.barriers.parted
    }

    /// Whether a checkpoint is cut right after this step. Workers apart are asked to come to one.
    pub(super) fn cuts_after(&self, step: u64) -> bool {
        let is_due = self.cutter.is_due(step);
        if is_due && self.may_be_called() {
            self.ask_for_barrier();
        }
        is_due && !self.is_apart()
    }

    /// While this worker waits for data, time passes too.
    pub(super) fn ask_if_due(&self) {
        if self.may_be_called() && self.cutter.is_due_by_time() {
            self.ask_for_barrier();
        }
    }

    fn ask_for_barrier(&self) {
        self.membership.ask_for_barrier(self.barriers.next());
    }

    /// Goes to the barrier that it was called to, from between two steps. Answers whether training goes on.
    ///
    /// # Errors
    /// When another does not come, naming it; when training cannot go on.
    pub(super) async fn answer_call(&mut self, epoch: u32) -> Result<bool, WorkerError> {
        let resolution = self.gather(Errand::Checkpoint).await?;
        if resolution == Resolution::Cut {
            self.cut(epoch).await?;
        }
        Ok(resolution != Resolution::Stop)
    }

    /// Where workers step apart, waits until each of them has ended the epoch (invariant AS-1). Meanwhile others may still call
    /// for a checkpoint. Answers whether training goes on.
    ///
    /// # Errors
    /// As [`Self::answer_call`].
    pub(super) async fn meet(&mut self, epoch: u32) -> Result<bool, WorkerError> {
        if !self.is_apart() {
            return Ok(true);
        }
        loop {
            match self.gather(Errand::EpochEnd).await? {
                Resolution::EpochOver => return Ok(true),
                Resolution::Cut => self.cut(epoch).await?,
                Resolution::Stop => return Ok(false),
            }
        }
    }

    /// Before the last checkpoint: has the others stop too, where they do not know yet.
    ///
    /// # Errors
    /// When another does not come, naming it.
    pub(super) async fn part(&mut self) -> Result<(), WorkerError> {
        if self.may_be_called() {
            self.ask_for_barrier();
            self.gather(Errand::Stop).await?;
        }
        Ok(())
    }

    /// Tells the others what this worker came for and what it has done, and takes down what they have.
    async fn gather(&mut self, errand: Errand) -> Result<Resolution, WorkerError> {
        let card = Card { errand, called: self.barriers.called(), account: self.tracker.account() };
        let cards = self.dense.call(move |dense| dense.all_say(&card)).await??;
        let rank = self.peers.map_or(0, |peers| peers.rank as usize);
        let others = cards.iter().enumerate().filter(|(other, _)| *other != rank).map(|(_, card)| card.account);
        self.tracker.met(others.fold(Account::default(), Account::and));
        Ok(self.barriers.attend(&cards))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::{Instant, sleep};
    use zagros_coordinator_client::AnnouncedBarrier;

    use super::*;

    fn card(errand: Errand, called: u64) -> Card {
        Card { errand, called, account: Account::default() }
    }

    #[test]
    fn an_epoch_ends_once_all_came_to_end_it_and_whoever_stops_has_all_stop() {
        use Errand::{Checkpoint, EpochEnd, Stop};
        let of = |errands: [Errand; 3]| resolve(errands.into_iter());
        assert_eq!(of([EpochEnd; 3]), Resolution::EpochOver);
        assert_eq!([of([Checkpoint; 3]), of([EpochEnd, Checkpoint, EpochEnd])], [Resolution::Cut; 2]);
        assert_eq!([of([Checkpoint, Stop, EpochEnd]), of([EpochEnd, EpochEnd, Stop])], [Resolution::Stop; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_goes_to_each_barrier_once_and_not_before_its_time() {
        let (tell, view) = watch::channel(MemberView::default());
        let mut barriers = Barriers::new(view);
        assert!(barriers.due().now_or_never().is_none());
        let started = Instant::now();
        let call = |number, at| tell.send_modify(|view| view.barrier = Some(AnnouncedBarrier { number, at }));
        call(1, started + Duration::from_secs(2));
        barriers.due().await;
        assert_eq!((started.elapsed(), barriers.next()), (Duration::from_secs(2), 1));
        assert_eq!(barriers.attend(&[card(Errand::Checkpoint, 1), card(Errand::EpochEnd, 0)]), Resolution::Cut);
        // The coordinator goes on telling of it.
        sleep(Duration::from_secs(1)).await;
        assert!(barriers.due().now_or_never().is_none());
        // The end of an epoch comes before the next.
        call(2, Instant::now() + Duration::from_secs(1));
        assert_eq!(barriers.attend(&[card(Errand::EpochEnd, 1), card(Errand::EpochEnd, 2)]), Resolution::EpochOver);
        assert_eq!((barriers.next(), barriers.parted), (2, false));
        barriers.due().await;
        assert_eq!(barriers.attend(&[card(Errand::EpochEnd, 1), card(Errand::Checkpoint, 2)]), Resolution::Cut);
        assert!(barriers.due().now_or_never().is_none());
        assert_eq!((barriers.next(), barriers.parted), (3, false));
        assert_eq!(barriers.attend(&[card(Errand::Stop, 2), card(Errand::EpochEnd, 2)]), Resolution::Stop);
        assert!(barriers.parted);
    }
}
