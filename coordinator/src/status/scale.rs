//! How far a change of the numbers of embedding servers and dense workers is.

use serde::Serialize;
use zagros_protocol::control::ScaleStatus;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScaleReport {
    /// Servers that the run has, with those that it waits for and those that leave.
    pub servers: u32,
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
    pub rows_moved: u64,
    pub bytes_moved: u64,
    /// The longest time for which a server was frozen, seconds.
    pub longest_freeze_seconds: f64,
    /// Why the newest of the abandoned moves was given up; empty if none was.
    pub last_failure: String,
    /// Dense workers that train; 0 until a scale request asks for a number of workers.
    pub workers: u32,
    /// Dense workers that the run is to have; 0 as well.
    pub workers_wanted: u32,
    /// Which workers come and go; empty when the run has the workers that it is to have.
    pub workers_doing: String,
    pub text: String,
}

impl ScaleReport {
    /// Whether the run has the servers and workers that it is to have, and each bucket is where it is wanted.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.has_servers() && self.has_workers()
    }

    fn has_servers(&self) -> bool {
        self.servers == self.servers_wanted && self.buckets_left == 0
    }

    fn has_workers(&self) -> bool {
        self.workers == self.workers_wanted && self.workers_doing.is_empty()
    }

    fn in_words(&self) -> String {
        let Self { workers_wanted, workers_doing, .. } = self;
        let servers = self.servers_in_words();
        if *workers_wanted == 0 {
            return servers;
        }
        match (self.has_workers(), workers_doing.as_str()) {
            (true, _) => format!("{servers}; {workers_wanted} dense workers"),
            (false, "") => format!("{servers}; {workers_wanted} dense workers are wanted, and {} train", self.workers),
            (false, doing) => format!("{servers}; {workers_wanted} dense workers are wanted: {doing}"),
        }
    }

    fn servers_in_words(&self) -> String {
        let Self { servers_wanted, buckets_left, doing, buckets_moved, rows_moved, bytes_moved, .. } = self;
        if self.has_servers() && *buckets_moved == 0 {
            return format!("{servers_wanted} embedding servers");
        }
        if self.has_servers() {
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
            workers: status.workers,
            workers_wanted: status.workers_wanted,
            workers_doing: status.workers_doing,
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
        let (servers, wanted, buckets_left, doing) = (4, 3, 16, "move 3 copies: 10 rows".to_owned());
        let status = ScaleStatus { servers, wanted, buckets_left, doing, ..Default::default() };
        let moving = ScaleReport::from(status.clone());
        let text = "3 embedding servers are wanted, 16 buckets still move; move 3 copies: 10 rows";
        assert_eq!((moving.text.as_str(), moving.is_done()), (text, false));
        let (doing, bytes_moved, buckets_moved) = (String::new(), 3 << 19, 8);
        let done = ScaleStatus { servers: 3, buckets_left: 0, doing, bytes_moved, buckets_moved, ..status };
        let done = ScaleReport::from(ScaleStatus { longest_frozen_us: 12_400, ..done });
        let text = "3 embedding servers; moved 8 buckets with 0 rows (1.5 MiB), longest freeze 12 ms";
        assert_eq!((done.text.as_str(), done.is_done()), (text, true));
    }

    #[test]
    fn workers_that_come_and_go_are_named() {
        let (servers, wanted) = (1, 1);
        let doing = "dense worker 1 joins".to_owned();
        let status =
            ScaleStatus { servers, wanted, workers: 1, workers_wanted: 2, workers_doing: doing, ..Default::default() };
        let joining = ScaleReport::from(status.clone());
        let text = "1 embedding servers; 2 dense workers are wanted: dense worker 1 joins";
        assert_eq!((joining.text.as_str(), joining.is_done()), (text, false));
        let done = ScaleReport::from(ScaleStatus { workers: 2, workers_doing: String::new(), ..status });
        assert_eq!((done.text.as_str(), done.is_done()), ("1 embedding servers; 2 dense workers", true));
    }
}
