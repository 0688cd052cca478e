//! How many bytes a run must save when it is stopped, and how long that may take.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use zagros_plumbing::ask::ask_with;
use zagros_shell::Announcement;

use zagros_launch::RoleName;
use zagros_transport::Credentials;

/// A server that does not answer its metrics within this time is skipped.
const ANSWER: Duration = Duration::from_secs(2);
/// Bytes per second of a slow disk or a distant store.
const SLOW: u64 = 20 << 20;
/// Both a checkpoint and a model may have to be written.
const TIMES: u64 = 2;
/// Metrics of rows in memory and of rows on disk.
const METRICS: [&str; 2] = ["zagros_embedding_table_bytes{", "zagros_embedding_cold_bytes{"];

/// Bytes that the embedding servers hold, by their metrics. Servers that do not answer are skipped.
pub(super) async fn held_bytes(run: &Path, credentials: &Credentials, servers: u32) -> u64 {
    let token = credentials.page_token();
    let answers = (0..servers).map(async |index| {
        let server = Announcement::read(&RoleName::EmbeddingServer(index).announcement_file(run))?;
        let (_, metrics) = ask_with(&server.admin, "/metrics", token.as_deref(), ANSWER).await.ok()?;
        Some(bytes_in(&String::from_utf8_lossy(&metrics)))
    });
    join_all(answers).await.into_iter().flatten().sum()
}

/// How long workers may take to save so many bytes: the time of a slow disk, plus the timeout of one answer.
pub(super) fn save_grace(bytes: u64, timeout: Duration) -> Duration {
    timeout + Duration::from_secs(bytes.saturating_mul(TIMES).div_ceil(SLOW))
}

fn bytes_in(metrics: &str) -> u64 {
    let ours = metrics.lines().filter(|line| METRICS.iter().any(|metric| line.starts_with(metric)));
    ours.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).map(|bytes| bytes as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_memory_and_on_disk_count() {
        let metrics = "# HELP zagros_embedding_table_bytes Bytes\n\
                       zagros_embedding_table_bytes{server=\"0\",table=\"C1\"} 1048576\n\
                       zagros_embedding_table_bytes{server=\"0\",table=\"C2\"} 1.5e6\n\
                       zagros_embedding_table_rows{server=\"0\",table=\"C2\"} 77\n\
                       zagros_embedding_cold_bytes{server=\"0\"} 4\n";
        assert_eq!(bytes_in(metrics), 1_048_576 + 1_500_000 + 4);
    }

    #[test]
    fn more_rows_have_more_time() {
        let timeout = Duration::from_secs(30);
        assert_eq!(save_grace(0, timeout), timeout);
        assert_eq!(save_grace(10 << 30, timeout), timeout + Duration::from_secs(1024));
        assert!(save_grace(u64::MAX, timeout) > timeout);
    }
}
