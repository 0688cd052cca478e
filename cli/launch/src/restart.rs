//! Which lost processes are started again, when, and how often.
//!
//! | process | started again | bound |
//! |---|---|---|
//! | dense worker | where the other workers wait for it | [`RestartBudget::left`], over all workers |
//! | a role that comes back with what it held | in place: the rest of the run only waits | [`MOST`] a minute each |

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use zagros_shell::{Exit, Failure};

use crate::child::{ChildProcess, RoleName};

/// Restarts in place of one process within [`SPAN`]. A process that ends more often would end for ever.
const MOST: usize = 20;
const SPAN: Duration = Duration::from_secs(60);
/// Pause before the second restart within [`SPAN`]; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Starts lost processes again, each in its own place.
pub struct RestartBudget<'a> {
    /// How often lost dense workers are started again, over all of them.
    pub left: u32,
    /// Training goes on without a lost dense worker while as many are left.
    pub least: usize,
    /// Whether a role comes back with what it held.
    pub is_in_place: &'a dyn Fn(RoleName) -> bool,
    pub start: &'a dyn Fn(RoleName) -> Result<ChildProcess, Failure>,
    /// Starts a dense worker in a slot that no process holds.
    pub join: &'a dyn Fn(u32) -> Result<ChildProcess, Failure>,
}

impl<'a> RestartBudget<'a> {
    /// Nothing that is lost is started again. `start` starts what is wanted besides.
    pub fn without_restarts(start: &'a dyn Fn(RoleName) -> Result<ChildProcess, Failure>) -> Self {
        Self { left: 0, least: usize::MAX, is_in_place: &|_| false, start, join: &not_wanted }
    }
}

fn not_wanted(index: u32) -> Result<ChildProcess, Failure> {
    let what = format!("{} is not wanted", RoleName::DenseWorker(index).display_name());
    Err(Failure::with_help(Exit::Internal, what, "this is a bug"))
}

/// How often a process is started again in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InPlaceLimit {
    /// [`MOST`] times within [`SPAN`], each time after a longer pause: it may end for ever.
    #[default]
    OfFailures,
    /// Each time and at once: a test kills it on purpose, again and again.
    Unlimited,
}

/// When one process was started again in place.
#[derive(Debug, Default)]
pub(crate) struct InPlaceRestarts(VecDeque<Instant>);

impl InPlaceRestarts {
    /// Books a restart now, and answers how long to wait before it. `None` when the process has ended too often.
    pub(crate) fn next(&mut self, now: Instant, limit: InPlaceLimit) -> Option<Duration> {
        if limit == InPlaceLimit::Unlimited {
            return Some(Duration::ZERO);
        }
        while self.0.front().is_some_and(|first| now.saturating_duration_since(*first) >= SPAN) {
            self.0.pop_front();
        }
        let earlier = self.0.len();
        if earlier >= MOST {
            return None;
        }
        self.0.push_back(now);
        let doublings = u32::try_from(earlier.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        Some(if earlier == 0 { Duration::ZERO } else { (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE) })
    }
}

/// How often a process may be started again, in words.
pub(crate) fn limit_text() -> String {
    format!("{MOST} times within {} s", SPAN.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: InPlaceLimit = InPlaceLimit::OfFailures;

    #[test]
    fn a_process_that_is_killed_on_purpose_is_started_again_at_once_each_time() {
        let (mut restarts, start) = (InPlaceRestarts::default(), Instant::now());
        assert!((0..MOST * 3).all(|_| restarts.next(start, InPlaceLimit::Unlimited) == Some(Duration::ZERO)));
    }

    #[test]
    fn pauses_grow_and_a_process_that_ends_for_ever_is_not_started_for_ever() {
        let mut restarts = InPlaceRestarts::default();
        let start = Instant::now();
        let pauses: Vec<_> = (0..MOST).map(|_| restarts.next(start, LIMIT).expect("within the limit")).collect();
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..7], [0, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!((millis[MOST - 1], restarts.next(start + SPAN / 2, LIMIT)), (2000, None));
        assert_eq!(restarts.next(start + SPAN, LIMIT), Some(Duration::ZERO), "a minute later it is as new");
    }
}
