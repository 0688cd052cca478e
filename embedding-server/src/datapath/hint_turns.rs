//! The order of hints: they take turns, apart from lookups and pushes, and those that wait take bounded memory.

use tokio::sync::{Semaphore, SemaphorePermit};
use zagros_plumbing::metrics::IntGauge;
use zagros_protocol::{Refusal, RefusalKind};

/// Hints that are served at a time: one waits for the disk while the rows of the other are paged in.
const AT_ONCE: usize = 2;
/// The most bytes of ids in hints that are served or wait.
const MOST_BYTES: usize = 32 << 20;
const ID_BYTES: usize = 8;

#[derive(Debug)]
pub(crate) struct HintTurns {
    turns: Semaphore,
    /// A permit for each byte of ids in hints that are served or wait.
    room: Semaphore,
    waiting: WaitingHints,
}

#[derive(Clone, Debug)]
pub(crate) struct WaitingHints {
    pub(crate) hints: IntGauge,
    pub(crate) ids: IntGauge,
}

#[derive(Debug)]
struct WaitingHint<'a> {
    waiting: &'a WaitingHints,
    ids: i64,
}

#[derive(Debug)]
pub(crate) struct HintTurn<'a> {
    _turn: Option<SemaphorePermit<'a>>,
    _room: SemaphorePermit<'a>,
}

impl WaitingHints {
    fn count_waiting(&self, ids: usize) -> WaitingHint<'_> {
        let ids = ids as i64;
        self.hints.inc();
        self.ids.add(ids);
        WaitingHint { waiting: self, ids }
    }
}

impl Drop for WaitingHint<'_> {
    fn drop(&mut self) {
        self.waiting.hints.dec();
        self.waiting.ids.sub(self.ids);
    }
}

impl HintTurns {
    pub(crate) fn new(waiting: WaitingHints) -> Self {
        Self { turns: Semaphore::new(AT_ONCE), room: Semaphore::new(MOST_BYTES), waiting }
    }

    /// Waits for the turn of a hint with `bytes` of ids. Refused as `Unavailable` if too many hints wait.
    pub(crate) async fn wait_for_turn(&self, bytes: usize) -> Result<HintTurn<'_>, Refusal> {
        // A hint that is larger than the limit is served alone.
        let room = self.room.try_acquire_many(bytes.min(MOST_BYTES) as u32).map_err(|_| {
            let held = (MOST_BYTES - self.room.available_permits()) >> 20;
            let message = format!("{held} MiB of hints wait already; the rows are read when they are looked up");
            Refusal::new(RefusalKind::Unavailable, message)
        })?;
        let _waiting = self.waiting.count_waiting(bytes / ID_BYTES);
        Ok(HintTurn { _turn: self.turns.acquire().await.ok(), _room: room })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zagros_plumbing::Deadline;

    use super::*;

    fn turns() -> HintTurns {
        let gauge = |name: &str| IntGauge::new(name, name).unwrap();
        HintTurns::new(WaitingHints { hints: gauge("hints"), ids: gauge("ids") })
    }

    #[tokio::test]
    async fn hints_that_wait_are_counted_until_they_are_served_or_given_up() {
        let turns = turns();
        let waiting = || (turns.waiting.hints.get(), turns.waiting.ids.get());
        let first = turns.wait_for_turn(80).await.unwrap();
        let second = turns.wait_for_turn(80).await.unwrap();
        assert_eq!(waiting(), (0, 0), "those that are served do not wait");
        let mut third = Box::pin(turns.wait_for_turn(160));
        let mut fourth = Box::pin(turns.wait_for_turn(8));
        assert!(futures::poll!(third.as_mut()).is_pending() && futures::poll!(fourth.as_mut()).is_pending());
        assert_eq!(waiting(), (2, 21));
        drop(fourth);
        assert_eq!(waiting(), (1, 20), "one is given up");
        drop(first);
        let third = third.await.unwrap();
        assert_eq!(waiting(), (0, 0));
        drop((second, third));
    }

    #[tokio::test]
    async fn hints_take_turns_and_those_that_wait_take_bounded_memory() {
        let turns = turns();
        let [first, second] =
            [turns.wait_for_turn(MOST_BYTES / 2).await.unwrap(), turns.wait_for_turn(1).await.unwrap()];
        let soon = Deadline::from_now(Duration::from_millis(20));
        assert!(soon.bound(turns.wait_for_turn(2)).await.is_err(), "two are served at a time");
        assert_eq!(turns.room.available_permits(), MOST_BYTES / 2 - 1, "one that is given up holds nothing");
        let refusal = turns.wait_for_turn(MOST_BYTES / 2).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unavailable);
        assert!(refusal.message.contains("hints wait already"), "{refusal}");
        drop(first);
        let third = turns.wait_for_turn(MOST_BYTES / 2).await.unwrap();
        drop((second, third));
        // One that is larger than the limit is served alone.
        drop(turns.wait_for_turn(2 * MOST_BYTES).await.unwrap());
        assert_eq!(turns.room.available_permits(), MOST_BYTES);
    }
}
