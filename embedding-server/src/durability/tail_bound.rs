//! How long the tail may become. It bounds the disk that a log takes, and the time of a recovery.
//!
//! ```text
//! tail   0 ────────────► due ──────────────────────────► longest
//!                         │ the keeper writes a base       │ pushes are refused until a base is written
//!                         │ and the tail starts again      │ (the disk is slow, or bases fail)
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use zagros_rows::log::SEGMENT_BYTES;

/// Sizes in bytes. Tests have small ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSizes {
    pub(crate) segment: u64,
    /// The shortest tail that leads to a base.
    pub(crate) tail: u64,
}

impl Default for LogSizes {
    fn default() -> Self {
        Self { segment: SEGMENT_BYTES, tail: 256 << 20 }
    }
}

/// A tail may be so many times as long as one that leads to a base.
const LONGEST: u64 = 4;

#[derive(Debug)]
pub(super) struct TailBound {
    shortest: u64,
    /// Bytes of the newest base.
    base: AtomicU64,
    /// Bytes of the tail when the last load of a model ended, if no base was written since: all of its rows are in the tail.
    loaded: AtomicU64,
    /// Why the last base could not be written.
    failure: Mutex<Option<String>>,
}

impl TailBound {
    pub(super) fn new(sizes: LogSizes, base: u64) -> Self {
        let (base, loaded) = (AtomicU64::new(base), AtomicU64::new(0));
        Self { shortest: sizes.tail, base, loaded, failure: Mutex::default() }
    }

    pub(super) fn base_written(&self, bytes: u64) {
        self.base.store(bytes, Ordering::Release);
        self.loaded.store(0, Ordering::Release);
        *self.failure.lock() = None;
    }

    pub(super) fn base_failed(&self, why: String) {
        *self.failure.lock() = Some(why);
    }

    /// A load has ended, with a tail of so many bytes.
    pub(super) fn load_ended(&self, tail: u64) {
        self.loaded.store(tail, Ordering::Release);
    }

    pub(super) fn is_due(&self, tail: u64) -> bool {
        tail > self.due()
    }

    /// Whether a push may make the tail longer.
    pub(super) fn check_tail(&self, tail: u64) -> Result<(), String> {
        let longest = self.longest();
        if tail < longest {
            return Ok(());
        }
        let why = self.failure.lock().clone().unwrap_or_else(|| "a base is being written".to_owned());
        Err(format!("the log has {tail} bytes since its newest base, and may have {longest}: {why}"))
    }

    /// A load does not count against pushes: the server cannot refuse a part of it.
    fn longest(&self) -> u64 {
        (LONGEST * self.due()).max(2 * self.loaded.load(Ordering::Acquire))
    }

    fn due(&self) -> u64 {
        self.shortest.max(self.base.load(Ordering::Acquire) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_grows_with_its_base_and_not_without_end() {
        let bound = TailBound::new(LogSizes { segment: 1, tail: 100 }, 0);
        assert!(!bound.is_due(100) && bound.is_due(101) && bound.check_tail(399).is_ok());
        assert!(bound.check_tail(400).unwrap_err().ends_with("may have 400: a base is being written"));
        bound.base_failed("no space".to_owned());
        assert!(bound.check_tail(400).unwrap_err().ends_with("no space"));
        bound.load_ended(5000);
        assert!(bound.is_due(5000) && bound.check_tail(9999).is_ok() && bound.check_tail(10_000).is_err());
        bound.base_written(1000);
        assert!(!bound.is_due(500) && bound.is_due(501));
        assert!(bound.check_tail(1999).is_ok());
        assert!(bound.check_tail(2000).unwrap_err().ends_with("a base is being written"));
    }
}
