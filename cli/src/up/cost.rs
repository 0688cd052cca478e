//! The processor time of all processes of a run, which only their parent knows: into its summary and its page.

use std::time::Duration;

use zagros_dense_worker::{RunFolder, RunSummary};
use zagros_launch::RunConsole;
use zagros_plumbing::process::cpu_time_of_children;

use crate::page;

/// Adds the processor time of the children since `before`. Does nothing for a run whose samples were partly trained on by
/// processes that are not known any more: a resumed one, or one whose first worker was replaced. A failure does not fail the run.
pub(super) fn record(folder: &RunFolder, before: Option<Duration>, console: &RunConsole) {
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
