//! One log line for many equal events, so that a stranger who causes them fills no disk.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets a line pass at most once in a while, and counts the events between.
#[derive(Debug)]
pub struct LogPace {
    every: Duration,
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    last: Option<Instant>,
    events: u64,
}

impl LogPace {
    #[must_use]
    pub fn new(every: Duration) -> Self {
        Self { every, state: Mutex::default() }
    }

    /// Counts an event. Returns how many events its line stands for, or `None` if it has no line now.
    pub fn count_event(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        if state.last.is_some_and(|last| last.elapsed() < self.every) {
            return None;
        }
        state.last = Some(Instant::now());
        Some(std::mem::take(&mut state.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_events_have_one_line_in_a_while_that_counts_them() {
        let pace = LogPace::new(Duration::from_secs(10));
        assert_eq!(pace.count_event(), Some(1), "the first one has its line at once");
        assert!((0..4000).all(|_| pace.count_event().is_none()));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((pace.count_event(), pace.count_event()), (Some(4001), None));
    }
}
