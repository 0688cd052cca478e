//! The runtime that a command runs on.

use std::time::Duration;

use crate::exit::{Exit, Failure, OrInternal};

/// How long tasks and threads of the runtime may take to end.
const SHUTDOWN: Duration = Duration::from_millis(500);

/// Runs a command to its end on a runtime of its own, with a thread for each core.
pub fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    block_on_threads(None, command)
}

/// As [`block_on`], with a number of threads.
pub(crate) fn block_on_threads(
    threads: Option<usize>,
    command: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    threads.map(|threads| runtime.worker_threads(threads));
    let runtime = runtime.enable_all().build().or_internal()?;
    let ended = runtime.block_on(command);
    // Tasks release what they hold, such as a store that must be closed before the process ends. A blocking read of a
    // parser thread must not delay the process further: everything that matters is written.
    runtime.shutdown_timeout(SHUTDOWN);
    ended
}
