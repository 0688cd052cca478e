//! The end of a run: how many bytes it must save and how long that may take, and what all its processes cost.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use zagros_dense_worker::{RunFolder, RunSummary};
use zagros_plumbing::ask::ask_path;
use zagros_plumbing::process::cpu_time_of_children;
use zagros_shell::Announcement;
use zagros_shell::launch::{RoleName, RunConsole};
use zagros_transport::Credentials;

use crate::page;

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
        let (_, metrics) = ask_path(&server.admin, "/metrics", token.as_deref(), ANSWER).await.ok()?;
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

/// Adds the processor time of the children since `before`, which only their parent knows, to the summary and the page of the run. Does nothing for a run whose samples were partly trained on by
/// processes that are not known any more: a resumed one, or one whose first worker was replaced. A failure does not fail the run.
pub(super) fn record_cost(folder: &RunFolder, before: Option<Duration>, console: &RunConsole) {
    let spent = before.zip(cpu_time_of_children()).map(|(before, now)| now.saturating_sub(before));
    let read = std::fs::read(folder.summary_file()).ok();
    let summary = read.and_then(|text| serde_json::from_slice::<RunSummary>(&text).ok());
    let Some(summary) = spent.zip(summary).and_then(|(spent, summary)| with_cost(summary, spent)) else { return };
    if let Some(words) = summary.cost.in_words() {
        console.print_line(format!("cost: {words}"));
    }
    if let Err(error) = folder.write_summary(&summary) {
        console.print_warning(format!("the cost of all processes is not in the summary: {error}"));
    } else if let Err(failure) = page::write(folder) {
        failure.log_warning("the cost of all processes is not on the page of the run");
    }
}

fn with_cost(mut summary: RunSummary, spent: Duration) -> Option<RunSummary> {
    let is_whole = summary.cost.samples == summary.samples && summary.samples > 0;
    summary.cost.cpu_us_per_sample_of_all = Some(spent.as_secs_f64() * 1e6 / summary.samples as f64);
    is_whole.then_some(summary)
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

    fn summary(samples: u64, since_start: u64) -> RunSummary {
        serde_json::from_value(serde_json::json!({
            "outcome": "finished", "steps": 10, "skipped_steps": 0, "samples": samples, "seconds": 2.0,
            "samples_per_second": 500.0, "loss": 0.5, "train_auc": null, "evaluation": null, "rows": 0,
            "table_bytes": 0, "staleness": {"max": 0, "mean": 0.0}, "bad_rows": 0, "peak_rss_bytes": null,
            "stages": {"parse": 0.0, "dedup": 0.0, "lookup": 0.0, "gather": 0.0, "dense": 0.0, "scatter": 0.0,
                       "push": 0.0, "waiting": 0.5, "reduce": 1.0},
            "cost": {"samples": since_start, "cpu_us_per_sample": 3.0},
        }))
        .unwrap()
    }

    #[test]
    fn all_processes_count_if_they_trained_on_all_samples() {
        let whole = with_cost(summary(1000, 1000), Duration::from_millis(20)).unwrap();
        assert_eq!(whole.cost.cpu_us_per_sample_of_all, Some(20.0));
        assert_eq!(whole.cost.cpu_us_per_sample, Some(3.0));
        assert_eq!(with_cost(summary(1000, 600), Duration::from_millis(20)), None);
        assert_eq!(with_cost(summary(0, 0), Duration::from_millis(20)), None);
    }
}
