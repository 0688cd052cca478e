//! How far a change of the numbers of embedding servers and dense workers is.

use serde::Serialize;
use zagros_protocol::control::ScaleStatus;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScaleReport {
    #[serde(flatten)]
    pub status: ScaleStatus,
    pub text: String,
}

impl ScaleReport {
    /// Whether the run has the servers and workers that it is to have, and each bucket is where it is wanted.
    pub fn is_done(&self) -> bool {
        self.has_servers() && self.has_workers()
    }

    fn has_servers(&self) -> bool {
        self.status.servers == self.status.servers_wanted && self.status.buckets_left == 0
    }

    fn has_workers(&self) -> bool {
        self.status.workers == self.status.workers_wanted && self.status.workers_doing.is_empty()
    }

    fn in_words(&self) -> String {
        let ScaleStatus { workers_wanted, workers_doing, workers, .. } = &self.status;
        let servers = self.servers_in_words();
        if *workers_wanted == 0 {
            return servers;
        }
        match (self.has_workers(), workers_doing.as_str()) {
            (true, _) => format!("{servers}; {workers_wanted} dense workers"),
            (false, "") => format!("{servers}; {workers_wanted} dense workers are wanted, and {workers} train"),
            (false, doing) => format!("{servers}; {workers_wanted} dense workers are wanted: {doing}"),
        }
    }

    fn servers_in_words(&self) -> String {
        let ScaleStatus { servers_wanted, buckets_left, doing, buckets_moved, rows_moved, bytes_moved, .. } =
            &self.status;
        if self.has_servers() && *buckets_moved == 0 {
            return format!("{servers_wanted} embedding servers");
        }
        if self.has_servers() {
            let (mebibytes, millis) =
                (*bytes_moved as f64 / f64::from(1 << 20), self.status.longest_freeze_seconds * 1e3);
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
        let mut report = Self { status, text: String::new() };
        report.text = report.in_words();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_in_one_sentence() {
        let (servers, servers_wanted, buckets_left, doing) = (4, 3, 16, "move 3 copies: 10 rows".to_owned());
        let status = ScaleStatus { servers, servers_wanted, buckets_left, doing, ..Default::default() };
        let moving = ScaleReport::from(status.clone());
        let text = "3 embedding servers are wanted, 16 buckets still move; move 3 copies: 10 rows";
        assert_eq!((moving.text.as_str(), moving.is_done()), (text, false));
        let (doing, bytes_moved, buckets_moved) = (String::new(), 3 << 19, 8);
        let done = ScaleStatus { servers: 3, buckets_left: 0, doing, bytes_moved, buckets_moved, ..status };
        let done = ScaleReport::from(ScaleStatus { longest_freeze_seconds: 0.0124, ..done });
        let text = "3 embedding servers; moved 8 buckets with 0 rows (1.5 MiB), longest freeze 12 ms";
        assert_eq!((done.text.as_str(), done.is_done()), (text, true));
    }

    #[test]
    fn workers_that_come_and_go_are_named() {
        let (servers, servers_wanted) = (1, 1);
        let doing = "dense worker 1 joins".to_owned();
        let status = ScaleStatus {
            servers,
            servers_wanted,
            workers: 1,
            workers_wanted: 2,
            workers_doing: doing,
            ..Default::default()
        };
        let joining = ScaleReport::from(status.clone());
        let text = "1 embedding servers; 2 dense workers are wanted: dense worker 1 joins";
        assert_eq!((joining.text.as_str(), joining.is_done()), (text, false));
        let done = ScaleReport::from(ScaleStatus { workers: 2, workers_doing: String::new(), ..status });
        assert_eq!((done.text.as_str(), done.is_done()), ("1 embedding servers; 2 dense workers", true));
    }
}
