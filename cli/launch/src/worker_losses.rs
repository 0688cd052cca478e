//! The dense workers that were lost lately. A run that loses all of them at once has lost its dense network, and replacements do not
//! bring it back.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// By the worker's index.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
