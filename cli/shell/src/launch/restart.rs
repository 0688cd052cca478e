//! Which lost processes are started again, when, and how often.
//!
//! | process | started again | bound |
//! |---|---|---|
//! | dense worker | where the other workers wait for it | [`RestartBudget::left`], over all workers |
//! | a role that comes back with what it held | in place: the rest of the run only waits | [`MOST`] a minute each |

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::{Exit, Failure};
use serde_json::Value;
use tokio::time::Instant;
use zagros_job::{Job, Mode};

use crate::launch::child::{ChildProcess, RoleName};

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
        Self {
            left: 0,
            least: usize::MAX,
            is_in_place: &|_| false,
            start,
            join: &|index| not_started(RoleName::DenseWorker(index)),
        }
    }
}

/// Of a role that no caller starts.
pub(crate) fn not_started(role: RoleName) -> Result<ChildProcess, Failure> {
    let what = format!("{} is not started again", role.display_name());
    Err(Failure::with_help(Exit::Internal, what, "this is a bug"))
}

/// When one process was started again in place.
#[derive(Debug, Default)]
pub(crate) struct InPlaceRestarts(VecDeque<Instant>);

impl InPlaceRestarts {
    /// Books a restart now, and answers how long to wait before it. `None` when the process has ended too often.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Duration> {
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

/// The dense workers that were lost lately, by index. A run that loses all of them at once has lost its dense network,
/// and replacements do not bring it back.
#[derive(Debug, Default)]
pub(crate) struct WorkerLosses(BTreeMap<u32, Instant>);

impl WorkerLosses {
    pub(crate) fn record_loss(&mut self, worker: u32) {
        self.0.insert(worker, Instant::now());
    }

    /// Whether each of these workers, of which there are some, was lost within this time.
    pub(crate) fn has_all(&self, workers: impl IntoIterator<Item = u32>, within: Duration) -> bool {
        let mut workers = workers.into_iter().peekable();
        let is_recent = |worker| self.0.get(&worker).is_some_and(|lost| lost.elapsed() <= within);
        workers.peek().is_some() && workers.all(is_recent)
    }
}

/// What a lost dense worker costs the run, by the mode of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerLoss {
    /// The worker alone is started again. The others wait for it, or train on.
    Replaced,
    /// Every process is started again, from the newest checkpoint: the runs of mode `sync` are bit-equal.
    SetsRunBack,
    EndsRun,
}

impl WorkerLoss {
    pub fn from_job(job: &Job) -> Self {
        match job.train.mode {
            _ if !job.cluster.has_groups() => Self::EndsRun,
            Mode::Sync => Self::SetsRunBack,
            Mode::Hybrid | Mode::Async => Self::Replaced,
        }
    }
}

/// Whether the run of this folder has written its model and its summary, which is the last thing that it writes (invariant CK-5). A
/// process that is lost afterwards costs nothing: its checkpoints may be gone, so the run would go back to its beginning.
pub fn is_complete(folder: &Path) -> bool {
    let summary = fs::read(folder.join("summary.json")).ok();
    let summary = summary.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    summary.is_some_and(|summary| summary["complete"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_a_process_that_ends_for_ever_is_not_started_for_ever() {
        let mut restarts = InPlaceRestarts::default();
        let start = Instant::now();
        let pauses: Vec<_> = (0..MOST).map(|_| restarts.next(start).expect("within the limit")).collect();
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..7], [0, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!((millis[MOST - 1], restarts.next(start + SPAN / 2)), (2000, None));
        assert_eq!(restarts.next(start + SPAN), Some(Duration::ZERO), "a minute later it is as new");
    }

    #[tokio::test(start_paused = true)]
    async fn all_workers_are_lost_if_each_was_lost_lately() {
        let limit = Duration::from_secs(30);
        let mut losses = WorkerLosses::default();
        losses.record_loss(0);
        assert!(losses.has_all([0], limit) && !losses.has_all([0, 1], limit) && !losses.has_all([], limit));
        tokio::time::advance(limit).await;
        losses.record_loss(1);
        assert!(losses.has_all([0, 1], limit));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!losses.has_all([0, 1], limit), "worker 0 was replaced in time, and its replacement trains");
    }

    #[test]
    fn a_run_is_complete_by_its_summary() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_complete(folder.path()));
        for (summary, expected) in
            [(r#"{"complete":true}"#, true), (r#"{"complete":false}"#, false), (r#"{"compl"#, false), ("{}", false)]
        {
            fs::write(folder.path().join("summary.json"), summary).unwrap();
            assert_eq!(is_complete(folder.path()), expected, "{summary}");
        }
    }
}
