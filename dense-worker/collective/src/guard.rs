//! A deadline for calls without one.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `work` on a thread of its own; `None` if it has not ended in time (invariant WT-1). The thread then continues until
/// its wait ends, so `work` must own everything that it uses.
pub(crate) fn within<T: Send + 'static>(time: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || {
        // Nobody receives the result if the call took too long.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("rendezvous".to_owned()).spawn(run).ok()?;
    receiver.recv_timeout(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_time_returns_its_result_and_late_work_is_abandoned() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (_open, endless) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(10), move || endless.recv()), None);
    }
}
