//! What a forecast says about rows on disk.

use indicatif::HumanBytes;
use owo_colors::OwoColorize;
use serde_json::{Value, json};
use zagros_planner::{Forecast, ForecastInputs, PlanStage, RowsOnDisk};
use zagros_shell::out;

/// Rows beyond `cluster.memory`. Rows and bytes are those of all servers together.
pub(super) struct DiskReport<'a> {
    inputs: ForecastInputs<'a>,
    forecast: &'a Forecast,
    rows: &'a RowsOnDisk,
}

impl<'a> DiskReport<'a> {
    /// `None` if all rows are in memory, or their number is not known.
    pub(super) fn new(inputs: ForecastInputs<'a>, forecast: &'a Forecast) -> Option<Self> {
        Some(Self { inputs, forecast, rows: forecast.rows_on_disk.as_ref()? })
    }

    pub(super) fn to_json(&self) -> Value {
        let Self { inputs, forecast, rows } = self;
        let stages = &forecast.stages;
        let cpu = stages.of_stage(PlanStage::ColdRows) + stages.of_stage(PlanStage::ServerColdRows);
        json!({
            "rows_in_memory": rows.in_memory,
            "rows_on_disk": rows.on_disk,
            "memory_bytes": rows.memory_bytes(),
            "index_bytes": rows.index_bytes(),
            // Up to twice as much until what is overwritten is removed.
            "disk_bytes": rows.disk_bytes(),
            "zipf_exponent": rows.exponent,
            "read_share": rows.share,
            "reads_per_sample": rows.reads,
            "written_bytes_per_sample": rows.written_bytes(),
            "cpu_us_per_sample": 1e6 * cpu,
            "samples_per_second": inputs.machines.disk_count() / stages.disk,
            "lookahead": inputs.job.lookahead_batches(),
            "is_refused": rows.is_refused,
        })
    }

    /// Bytes of each of `servers` servers: in memory, with the index, and on disk.
    pub(super) fn of_each(&self, servers: f64) -> (f64, f64) {
        ((self.rows.memory_bytes() + self.rows.index_bytes()) / servers, self.rows.disk_bytes() / servers)
    }

    pub(super) fn print(&self) {
        if self.rows.is_refused {
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
        let rows = self.rows;
        let part = 100.0 * rows.in_memory / (rows.in_memory + rows.on_disk);
        let wait = format!(
            "hints read them {} batches before the lookup, which waits for none unless the disks are the bottleneck",
            self.inputs.job.lookahead_batches()
        );
        [
            format!(
                "{part:.1} % of the rows are in memory; their memory is {}, that of the index of the others {}; on disk {}, up to twice as \
                 much until what is overwritten is removed",
                bytes(rows.memory_bytes()),
                bytes(rows.index_bytes()),
                bytes(rows.disk_bytes())
            ),
            format!(
                "a batch reads {:.1} % of its distinct rows from disk, {:.2} rows a sample, and writes {} a sample; assumed: Zipf's law with \
                 exponent {:.2}, by the distinct rows of a batch, and memory for the rows that were used last",
                100.0 * rows.share,
                rows.reads,
                bytes(rows.written_bytes()),
                rows.exponent
            ),
            wait,
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::{Job, Overrides};
    use zagros_planner::{Calibration, DataShape, Machines};

    use super::super::{PlanReport, forecast};
    use super::*;

    const ONE: &str = "[[group]]\nname = 'here'\ncores = 2\nmemory = '8GiB'\nworkers = 1\n";

    /// The forecast as JSON, and its lines of rows on disk.
    fn figures(sets: &[&str], rows: Option<u64>) -> (Value, Option<[String; 3]>) {
        let text =
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[model]\nkind = 'ffnn'\nhidden = [8]\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        let data = DataShape { rows, ..DataShape::from_job(&job) };
        let (calibration, machines) = (Calibration::default(), Machines::from_toml(ONE).unwrap());
        let inputs = ForecastInputs { job: &job, data: &data, calibration: &calibration, machines: &machines };
        let plan = forecast(&job, &data, &calibration, &machines).unwrap();
        let lines = DiskReport::new(inputs, &plan).map(|rows| rows.lines());
        (PlanReport { inputs, forecast: &plan }.to_json(), lines)
    }

    #[test]
    fn a_forecast_has_figures_of_rows_on_disk_only_if_some_are_there() {
        let (json, lines) = figures(&["cluster.memory=1000MB"], Some(6_000_000));
        assert_eq!((lines, &json["rows_on_disk"]), (None, &Value::Null));
        assert_eq!(json["memory"]["server_rows"], 6e6 * 152.0);
        let (json, lines) = figures(&["cluster.memory=1000MB"], Some(20_000_000));
        let some = &json["rows_on_disk"];
        assert_eq!(some["rows_in_memory"], (1e9 - 12.0 * 2e7) / 140.0);
        assert_eq!(json["memory"]["server_cold_rows"], some["disk_bytes"]);
        let figure = |value: &Value| value.as_f64().unwrap();
        assert!((figure(&json["memory"]["server_rows"]) - 1e9).abs() < 1.0);
        assert!((figure(&some["cpu_us_per_sample"]) / figure(&some["reads_per_sample"]) - 3.3).abs() < 1e-9);
        let lines = lines.unwrap();
        assert!(lines[0].starts_with("27.1 % of the rows are in memory"), "{lines:?}");
        assert!(lines[2].starts_with("hints read them 2 batches before"), "{lines:?}");
    }
}
