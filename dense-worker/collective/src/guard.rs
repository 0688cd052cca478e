//! A deadline for calls that have none of their own.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `work` on a thread of its own; `None` when it has not ended in time (invariant WT-1). The thread is left
/// behind then, and ends with whatever it waits for: `work` must own all that it touches.
pub(crate) fn within<T: Send + 'static>(time: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || {
        // Nobody listens any more when it took too long.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("rendezvous".to_owned()).spawn(run).ok()?;
    receiver.recv_timeout(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_time_is_answered_and_what_does_not_is_left_behind() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (_open, endless) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(10), move || endless.recv()), None);
    }
}
