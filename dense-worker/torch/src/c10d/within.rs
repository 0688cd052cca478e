//! A deadline for calls that have none.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use zagros_collective::{GroupInterrupt, WAIT_SLICE};

/// Runs `work` on a thread of its own; `None` if it has not ended in time (invariant WT-1). The thread then continues until
/// its wait ends, so `work` must own everything that it uses.
pub(crate) fn run_within<T: Send + 'static>(time: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    run_within_unless(&GroupInterrupt::default(), time, work)
}

/// As [`run_within`]; `None` also once `interrupt` is set.
pub(crate) fn run_within_unless<T: Send + 'static>(
    interrupt: &GroupInterrupt,
    time: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || {
        // The caller does not receive the result if the call took too long.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("rendezvous".to_owned()).spawn(run).ok()?;
    let started = Instant::now();
    loop {
        let left = time.saturating_sub(started.elapsed());
        match receiver.recv_timeout(left.min(WAIT_SLICE)) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Timeout) if left > WAIT_SLICE && !interrupt.is_set() => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_time_returns_its_result_and_late_work_is_abandoned() {
        assert_eq!(run_within(Duration::from_secs(60), || 7), Some(7));
        let (_open, endless) = mpsc::channel::<()>();
        assert_eq!(run_within(Duration::from_millis(10), move || endless.recv()), None);
        let (interrupt, (_open, endless)) = (GroupInterrupt::default(), mpsc::channel::<()>());
        interrupt.set();
        assert_eq!(run_within_unless(&interrupt, Duration::from_secs(3600), move || endless.recv()), None);
    }
}
