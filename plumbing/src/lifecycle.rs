//! The end of a process: a token that requests it, a tracker that waits for tasks, and a deadline that names late
//! tasks.

use std::future::Future;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A token that requests the end. Every task that must notice the end has a clone. Plain threads can read it too.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests the end. A second request changes nothing.
    pub fn request(&self) {
        self.0.cancel();
    }

    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    pub async fn requested(&self) {
        self.0.cancelled().await;
    }
}

/// What a request to end (SIGTERM, Ctrl-C) means for a process whose state other processes need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopMeaning {
    /// All processes end in order: this one ends once no other process needs it any more.
    #[default]
    Drain,
    /// This process alone ends, at once. Another process takes its place and recovers its state from the disk.
    Restart,
}

/// Named tasks that must end before the process does.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    shutdown: Shutdown,
    tracker: TaskTracker,
    names: Arc<Mutex<Vec<&'static str>>>,
}

impl Lifecycle {
    /// A lifecycle whose tasks end when `shutdown` is requested.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, ..Self::default() }
    }

    pub fn shutdown_token(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Runs a task that [`Self::finish_tasks`] waits for.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        lock(&self.names).push(name);
        let running = RunningTask { names: Arc::clone(&self.names), name };
        self.tracker.spawn(async move {
            task.await;
            drop(running);
        });
    }

    /// Requests the end and waits for every task. The error names the tasks that still run after `timeout`.
    pub async fn finish_tasks(self, timeout: Duration) -> Result<(), LateTasks> {
        self.shutdown.request();
        self.tracker.close();
        match tokio::time::timeout(timeout, self.tracker.wait()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(LateTasks { timeout, tasks: lock(&self.names).clone() }),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("still running {timeout:?} after shutdown was requested: {}", tasks.join(", "))]
pub struct LateTasks {
    pub timeout: Duration,
    pub tasks: Vec<&'static str>,
}

/// The exit code of the signal that asked the process to end; 0 before any.
#[derive(Clone, Debug, Default)]
pub struct StopSignals(Arc<AtomicI32>);

impl StopSignals {
    /// Requests `shutdown` at the first SIGINT or SIGTERM. A second signal calls `exit` at once with the code 130 or
    /// 143.
    pub fn install_handlers(shutdown: Shutdown, exit: fn(i32) -> !) -> std::io::Result<Self> {
        Self::install_with(shutdown, move |code| exit(code))
    }

    /// As [`Self::install_handlers`], but each signal after the first calls `again` with the first signal's exit code.
    pub fn install_with(shutdown: Shutdown, mut again: impl FnMut(i32) + Send + 'static) -> std::io::Result<Self> {
        let signals = Self::default();
        let caught = signals.clone();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::spawn(async move {
            loop {
                let code = tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                };
                if let Some(first) = caught.exit_code() {
                    again(first);
                    continue;
                }
                caught.0.store(code, Ordering::Release);
                shutdown.request();
            }
        });
        Ok(signals)
    }

    /// 130 after SIGINT, 143 after SIGTERM (128 + signal number). `None` before any signal.
    pub fn exit_code(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Acquire)).filter(|code| *code != 0)
    }
}

fn lock<'a>(names: &'a Mutex<Vec<&'static str>>) -> MutexGuard<'a, Vec<&'static str>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

struct RunningTask {
    names: Arc<Mutex<Vec<&'static str>>>,
    name: &'static str,
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        let mut names = lock(&self.names);
        if let Some(index) = names.iter().position(|name| *name == self.name) {
            names.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_late_task_is_named() {
        let life = Lifecycle::new(Shutdown::new());
        let shutdown = life.shutdown_token().clone();
        life.spawn("prompt", async move { shutdown.requested().await });
        life.spawn("sleeper", std::future::pending());
        let late = life.finish_tasks(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(late.to_string(), "still running 5s after shutdown was requested: sleeper");
    }
}
