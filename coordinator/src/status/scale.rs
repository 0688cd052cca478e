//! How far a change of the number of embedding servers is.

use serde::Serialize;
use zagros_protocol::control::ScaleStatus;

/// A change of the number of embedding servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScaleReport {
    /// Servers that the run has, with those that it waits for and those that leave.
    pub servers: u32,
    /// Servers that it is to have.
    pub servers_wanted: u32,
    /// Buckets that are not where they are wanted.
    pub buckets_left: u32,
    /// What happens now; empty when all is done.
    pub doing: String,
    /// Moves since the run began.
    pub moves_committed: u64,
    /// Moves that were given up. Their buckets stayed where they were.
    pub moves_abandoned: u64,
    /// Buckets that have moved since the run began.
    pub buckets_moved: u64,
    /// Rows that have moved.
    pub rows_moved: u64,
    /// Bytes that have moved.
    pub bytes_moved: u64,
    /// The longest time for which a server was frozen, seconds.
    pub longest_freeze_seconds: f64,
    /// Why the newest of the abandoned moves was given up; empty if none was.
    pub last_failure: String,
    /// All of it in one sentence.
    pub text: String,
}

impl ScaleReport {
    /// Whether the run has as many servers as were asked for, and each bucket is where it is wanted.
    #[must_use]
    pub fn is_done(&self, wanted: u32) -> bool {
        (self.servers, self.servers_wanted, self.buckets_left) == (wanted, wanted, 0)
    }

    fn in_words(&self) -> String {
        let Self { servers_wanted, buckets_left, doing, buckets_moved, rows_moved, bytes_moved, .. } = self;
        if self.is_done(*servers_wanted) {
            let (mebibytes, millis) = (*bytes_moved as f64 / f64::from(1 << 20), self.longest_freeze_seconds * 1e3);
            return format!(
                "{servers_wanted} embedding servers; moved {buckets_moved} buckets with {rows_moved} rows ({mebibytes:.1} MiB), \
                 longest freeze {millis:.0} ms"
            );
        }
        let doing = if doing.is_empty() { "the next move is about to start" } else { doing };
        format!("{servers_wanted} embedding servers are wanted, {buckets_left} buckets still move; {doing}")
    }
}

impl From<ScaleStatus> for ScaleReport {
    fn from(status: ScaleStatus) -> Self {
        let mut report = Self {
            servers: status.servers,
            servers_wanted: status.wanted,
            buckets_left: status.buckets_left,
            doing: status.doing,
            moves_committed: status.moves_committed,
            moves_abandoned: status.moves_abandoned,
            buckets_moved: status.buckets_moved,
            rows_moved: status.rows_moved,
            bytes_moved: status.bytes_moved,
            longest_freeze_seconds: status.longest_frozen_us as f64 / 1e6,
            last_failure: status.last_failure,
            text: String::new(),
        };
        report.text = report.in_words();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_in_one_sentence() {
        let status = ScaleStatus {
            servers: 4,
            wanted: 3,
            buckets_left: 16,
            doing: "move 3 copies: 10 rows".to_owned(),
            ..Default::default()
        };
        let moving = ScaleReport::from(status.clone());
        assert_eq!(moving.text, "3 embedding servers are wanted, 16 buckets still move; move 3 copies: 10 rows");
        assert!(!moving.is_done(3));
        let (doing, bytes_moved) = (String::new(), 3 << 19);
        let done = ScaleStatus { servers: 3, buckets_left: 0, doing, bytes_moved, longest_frozen_us: 12_400, ..status };
        let done = ScaleReport::from(done);
        assert!(done.is_done(3) && !done.is_done(4));
        assert_eq!(done.text, "3 embedding servers; moved 0 buckets with 0 rows (1.5 MiB), longest freeze 12 ms");
    }
}
