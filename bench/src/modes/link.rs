//! The arrival times of bytes on a line that is slower than loopback. Pure.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NetworkLine {
    /// Time from the last byte in to the last byte out.
    pub(super) delay: Duration,
    /// Bytes per second; `None` for no limit.
    pub(super) rate: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BusyLine {
    line: NetworkLine,
    /// When all bytes sent so far have left.
    free_at: Option<Instant>,
}

impl BusyLine {
    pub(super) fn new(line: NetworkLine) -> Self {
        Self { line, free_at: None }
    }

    /// Puts bytes on the line at `now`. Returns when the last of them arrives.
    pub(super) fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        let starts = self.free_at.map_or(now, |free| free.max(now));
        let takes = self.line.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate));
        let left = starts + takes;
        self.free_at = Some(left);
        left + self.line.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_a_rate_everything_takes_the_delay() {
        let mut link = BusyLine::new(NetworkLine { delay: 2 * MS, rate: None });
        let start = Instant::now();
        assert_eq!(link.send(start, 1), start + 2 * MS);
        assert_eq!(link.send(start, 1 << 30), start + 2 * MS);
    }

    #[test]
    fn a_rate_makes_later_bytes_wait() {
        let mut link = BusyLine::new(NetworkLine { delay: MS, rate: Some(1e6) });
        let start = Instant::now();
        assert_eq!(link.send(start, 3000), start + 4 * MS);
        assert_eq!(link.send(start + MS, 1000), start + 5 * MS);
        // The line is idle by then.
        assert_eq!(link.send(start + 100 * MS, 1000), start + 102 * MS);
    }
}
