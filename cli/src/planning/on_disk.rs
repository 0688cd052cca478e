//! What a forecast says about rows on disk.

use indicatif::HumanBytes;
use owo_colors::OwoColorize;
use serde::Serialize;
use zagros_cost::{Forecast, Machines, PlanStage, RowsOnDisk};
use zagros_job::Job;
use zagros_shell::out;

/// Rows beyond `cluster.memory`. Rows and bytes are those of all servers together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct DiskFigures {
    rows_in_memory: f64,
    rows_on_disk: f64,
    memory_bytes: f64,
    /// Of the index of rows on disk, in memory.
    index_bytes: f64,
    /// Of the rows on disk; up to twice as much until what is overwritten is removed.
    disk_bytes: f64,
    /// Of Zipf's law, by which the popularity of rows is assumed to go.
    zipf_exponent: f64,
    /// The share of a batch's distinct rows that are read from disk.
    read_share: f64,
    reads_per_sample: f64,
    written_bytes_per_sample: f64,
    cpu_us_per_sample: f64,
    samples_per_second: f64,
    /// Batches that are hinted before their lookup.
    lookahead: usize,
    /// Whether memory is too small for the index, so that servers refuse new rows.
    is_refused: bool,
}

impl DiskFigures {
    /// `None` if all rows are in memory, or their number is not known.
    pub(crate) fn new(job: &Job, forecast: &Forecast, machines: &Machines) -> Option<Self> {
        let rows: &RowsOnDisk = forecast.rows_on_disk.as_ref()?;
        let stage = |stage| forecast.stages.of_stage(stage);
        Some(Self {
            rows_in_memory: rows.in_memory,
            rows_on_disk: rows.on_disk,
            memory_bytes: rows.memory_bytes(),
            index_bytes: rows.index_bytes(),
            disk_bytes: rows.disk_bytes(),
            zipf_exponent: rows.exponent,
            read_share: rows.share,
            reads_per_sample: rows.reads,
            written_bytes_per_sample: rows.written_bytes(),
            cpu_us_per_sample: 1e6 * (stage(PlanStage::ColdRows) + stage(PlanStage::ServerColdRows)),
            samples_per_second: machines.disk_count() / forecast.stages.disk,
            lookahead: job.lookahead_batches(),
            is_refused: rows.is_refused,
        })
    }

    /// Bytes of each of `servers` servers: in memory, with the index, and on disk.
    pub(crate) fn of_each(&self, servers: f64) -> (f64, f64) {
        let servers = servers.max(1.0);
        ((self.memory_bytes + self.index_bytes) / servers, self.disk_bytes / servers)
    }

    pub(crate) fn print(&self) {
        if self.is_refused {
            tracing::warn!(
                "the index of rows on disk leaves rows less than a quarter of cluster.memory, and the servers will refuse new rows: give \
                 them more memory, or add servers"
            );
        }
        out!("\n{}", "rows on disk".bold());
        self.lines().iter().for_each(|line| out!("  {line}"));
    }

    fn lines(&self) -> [String; 3] {
        let bytes = |value: f64| HumanBytes(value.max(0.0) as u64);
        let part = 100.0 * self.rows_in_memory / (self.rows_in_memory + self.rows_on_disk);
        let wait = format!(
            "hints read them {} batches before the lookup, which waits for none unless the disks are the bottleneck",
            self.lookahead
        );
        [
            format!(
                "{part:.1} % of the rows are in memory; their memory is {}, that of the index of the others {}; on disk {}, up to twice as \
                 much until what is overwritten is removed",
                bytes(self.memory_bytes),
                bytes(self.index_bytes),
                bytes(self.disk_bytes)
            ),
            format!(
                "a batch reads {:.1} % of its distinct rows from disk, {:.2} rows a sample, and writes {} a sample; assumed: Zipf's law with \
                 exponent {:.2}, by the distinct rows of a batch, and memory for the rows that were used last",
                100.0 * self.read_share,
                self.reads_per_sample,
                bytes(self.written_bytes_per_sample),
                self.zipf_exponent
            ),
            wait,
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_cost::{Calibration, DataShape};
    use zagros_job::Overrides;

    use super::super::{forecast, print::PlanFigures};
    use super::*;

    const ONE: &str = "[[group]]\nname = 'here'\ncores = 2\nmemory = '8GiB'\nworkers = 1\n";

    fn figures(sets: &[&str], rows: Option<u64>) -> (Option<DiskFigures>, serde_json::Value) {
        let text =
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[model]\nkind = 'ffnn'\nhidden = [8]\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        let data = DataShape { rows, ..DataShape::from_job(&job) };
        let (calibration, machines) = (Calibration::default(), Machines::from_toml(ONE).unwrap());
        let plan = forecast(&job, &data, &calibration, &machines).unwrap();
        let all = PlanFigures::new((&job, &data), (&calibration, &machines), &plan);
        (DiskFigures::new(&job, &plan, &machines), serde_json::to_value(all).unwrap())
    }

    #[test]
    fn a_forecast_has_figures_of_rows_on_disk_only_if_some_are_there() {
        let (fits, json) = figures(&["cluster.memory=1000MB"], Some(6_000_000));
        assert_eq!((fits, &json["rows_on_disk"]), (None, &serde_json::Value::Null));
        assert_eq!(json["memory"]["server_rows"], 6e6 * 152.0);
        let (some, json) = figures(&["cluster.memory=1000MB"], Some(20_000_000));
        let some = some.unwrap();
        assert_eq!(json["rows_on_disk"]["rows_in_memory"], (1e9 - 12.0 * 2e7) / 140.0);
        assert_eq!(json["memory"]["server_cold_rows"], some.disk_bytes);
        assert!((json["memory"]["server_rows"].as_f64().unwrap() - 1e9).abs() < 1.0);
        assert!((some.cpu_us_per_sample / some.reads_per_sample - 3.3).abs() < 1e-9);
        let lines = some.lines();
        assert!(lines[0].starts_with("27.1 % of the rows are in memory"), "{lines:?}");
        assert!(lines[2].starts_with("hints read them 2 batches before"), "{lines:?}");
    }
}
