//! An operator that runs in a test.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use zagros_operator::error::Error;
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::{Registry, render_text};

/// An operator that was asked to end should be gone after this virtual time.
const LATE: Duration = Duration::from_secs(60);

pub(crate) struct RunningOperator {
    pub(crate) shutdown: Shutdown,
    /// `None` once it is waited for.
    pub(crate) task: Option<JoinHandle<Result<(), Error>>>,
    pub(crate) registry: Registry,
}

impl RunningOperator {
    pub(crate) fn metric(&self, line: &str) -> bool {
        render_text(&self.registry).contains(line)
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        let page = render_text(&self.registry);
        let number = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        number.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    /// Ends as by SIGKILL.
    pub(crate) async fn kill(mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        assert!(timeout(LATE, task).await.is_ok(), "killed, and still there");
    }

    /// Ends for a reason of its own.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        self.task.take().unwrap().await.unwrap()
    }

    /// Ends as by SIGTERM.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        timeout(LATE, self.end()).await.expect("asked to end, and still there").unwrap();
    }
}

/// At the end of a test its operator still works.
impl Drop for RunningOperator {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        assert!(!task.is_finished() || std::thread::panicking(), "the operator ended alone");
        task.abort();
    }
}
