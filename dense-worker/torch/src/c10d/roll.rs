//! The roll of ranks. Every rank writes a key into the store when it comes, and another key when a call fails. The missing
//! ranks are therefore known by name.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::c10d::sys::RendezvousStore;
use crate::c10d::within::run_within;
use zagros_collective::{CollectiveError, GroupInterrupt, ROLL_CALL};

/// Time between two looks for the keys of others.
const POLL: Duration = Duration::from_millis(5);

/// The ranks that have written their keys.
#[derive(Clone, Debug)]
pub(crate) struct RankRoll {
    pub(crate) store: Arc<RendezvousStore>,
    pub(crate) prefix: String,
    pub(crate) rank: usize,
    pub(crate) world: usize,
}

impl RankRoll {
    /// Writes this rank's key and waits for the keys of the others, until it is interrupted. Returns the ranks without a key, ascending. If the
    /// store itself does not answer, that is rank 0, which serves it.
    pub(crate) fn call_roll(&self, word: &'static str, time: Duration, interrupt: &GroupInterrupt) -> Vec<usize> {
        let (roll, known) = (self.clone(), interrupt.clone());
        let absent = run_within(time + POLL * 20, move || roll.find_absent(word, time, &known));
        let absent = absent.and_then(Result::ok).unwrap_or_else(|| vec![0]);
        // The store may fail although this rank serves it, but this rank is alive.
        absent.into_iter().filter(|rank| *rank != self.rank).collect()
    }

    fn find_absent(&self, word: &str, time: Duration, interrupt: &GroupInterrupt) -> Result<Vec<usize>, String> {
        let started = Instant::now();
        let key = |rank: usize| format!("{}{word}/{rank}", self.prefix);
        self.store.set_key(&key(self.rank))?;
        let mut absent: Vec<usize> = (0..self.world).collect();
        loop {
            let mut still = Vec::new();
            for rank in absent {
                if !self.store.has_key(&key(rank))? {
                    still.push(rank);
                }
            }
            if still.is_empty() || started.elapsed() >= time || interrupt.is_set() {
                return Ok(still);
            }
            absent = still;
            thread::sleep(POLL);
        }
    }

    /// Why a call failed: the ranks that do not answer the roll call.
    pub(crate) fn post_mortem(&self, call: &'static str, started: Instant, reason: String) -> CollectiveError {
        let waited = started.elapsed();
        let missing = self.call_roll("failed", ROLL_CALL, &GroupInterrupt::default());
        CollectiveError::from_roll(missing, call, waited, reason)
    }
}
