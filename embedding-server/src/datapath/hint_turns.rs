//! The order of hints: they take turns, apart from lookups and pushes, and those that wait take bounded memory.

use tokio::sync::{Semaphore, SemaphorePermit};
use zagros_protocol::{Refusal, RefusalKind};

/// Hints that are served at a time: one waits for the disk while the rows of the other are paged in.
const AT_ONCE: usize = 2;
/// The most bytes of ids in hints that are served or wait.
const MOST_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(crate) struct HintTurns {
    turns: Semaphore,
    /// A permit for each byte of ids in hints that are served or wait.
    room: Semaphore,
}

#[derive(Debug)]
pub(crate) struct HintTurn<'a> {
    _turn: Option<SemaphorePermit<'a>>,
    _room: SemaphorePermit<'a>,
}

impl Default for HintTurns {
    fn default() -> Self {
        Self { turns: Semaphore::new(AT_ONCE), room: Semaphore::new(MOST_BYTES) }
    }
}

impl HintTurns {
    /// Waits for the turn of a hint with `bytes` of ids. Refused as `Unavailable` if too many hints wait.
    pub(crate) async fn wait_for_turn(&self, bytes: usize) -> Result<HintTurn<'_>, Refusal> {
        // A hint that is larger than the limit is served alone.
        let room = self.room.try_acquire_many(bytes.min(MOST_BYTES) as u32).map_err(|_| {
            let held = (MOST_BYTES - self.room.available_permits()) >> 20;
            let message = format!("{held} MiB of hints wait already; the rows are read when they are looked up");
            Refusal::new(RefusalKind::Unavailable, message)
        })?;
        Ok(HintTurn { _turn: self.turns.acquire().await.ok(), _room: room })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zagros_plumbing::Deadline;

    use super::*;

    #[tokio::test]
    async fn hints_take_turns_and_those_that_wait_take_bounded_memory() {
        let turns = HintTurns::default();
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
