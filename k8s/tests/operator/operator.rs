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
    pub(crate) task: JoinHandle<Result<(), Error>>,
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
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(timeout(LATE, self.task).await.is_ok(), "killed, and still there");
    }

    /// Ends as by SIGTERM.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        timeout(LATE, self.task).await.expect("asked to end, and still there").unwrap().unwrap();
    }
}
