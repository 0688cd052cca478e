//! `zagros-bench plan`: forecasts of `zagros plan` beside runs of `zagros up`. Each forecast is made right before its
//! run, from the same job file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::process::Command;
use zagros_bench::workload;
use zagros_ingest::synthetic::{SyntheticSpec, generate_criteo};
use zagros_shell::{CommandReport, Exit, Failure, OrFailure, ReportTable, err, print_figures};

use crate::args::PlanArgs;
use crate::runs::{FinishedRun, run_up, zagros_program};

/// Rows of `--quick`, and its one batch.
const QUICK: (u64, u64) = (8_000, 512);
/// The networks: their names, and their keys.
const NETWORKS: [(&str, &str); 3] = [
    ("DLRM 512-256", "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]"),
    ("FFNN 1024-512-256", "kind = \"ffnn\"\nhidden = [1024, 512, 256]"),
    ("DCN-V2 2 × 429, 256", "kind = \"dcnv2\"\ncross_layers = 2\nhidden = [256]"),
];

#[derive(Debug, Serialize)]
struct PlanCases {
    cores: usize,
    calibration: String,
    cases: Vec<PlanCase>,
}

#[derive(Clone, Debug, Serialize)]
struct PlanCase {
    network: &'static str,
    batch: u64,
    workers: u64,
    bottleneck: String,
    samples_per_second: ForecastPair,
    /// Of the first worker's process, µs a sample.
    worker_cpu: ForecastPair,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ForecastPair {
    forecast: f64,
    measured: f64,
    ratio: f64,
}

impl ForecastPair {
    fn new(forecast: f64, measured: f64) -> Self {
        Self { forecast, measured, ratio: forecast / measured.max(f64::MIN_POSITIVE) }
    }
}

#[derive(Debug, Deserialize)]
struct ForecastAnswer {
    calibration: String,
    samples_per_second: f64,
    worker_cpu_us_per_sample: f64,
    bottleneck: String,
}

pub(crate) async fn run(args: PlanArgs) -> Result<Exit, Failure> {
    let (rows, batches) = if args.output.quick { (QUICK.0, vec![QUICK.1]) } else { (args.rows, args.batches.clone()) };
    let folder = TempDir::new().or_internal()?;
    let spec = SyntheticSpec { rows, test_rows: 1, ..SyntheticSpec::default() };
    generate_criteo(&spec, folder.path()).or_internal()?;
    let mut all = PlanCases { cores: zagros_job::threads::core_count(), calibration: String::new(), cases: Vec::new() };
    for (network, keys) in NETWORKS {
        for batch in batches.iter().copied() {
            for workers in args.workers.iter().copied() {
                let runs = folder.path().join(format!("runs-{}", all.cases.len()));
                let job = folder.path().join("job.toml");
                std::fs::write(&job, job_text(keys, batch, workers, &runs)).or_internal()?;
                let forecast = forecast(&job, workers).await?;
                let FinishedRun { summary, .. } = run_up(&job, &runs, network).await?;
                all.calibration = forecast.calibration;
                let case = PlanCase {
                    network,
                    batch,
                    workers,
                    bottleneck: forecast.bottleneck,
                    samples_per_second: ForecastPair::new(forecast.samples_per_second, summary.samples_per_second),
                    worker_cpu: ForecastPair::new(
                        forecast.worker_cpu_us_per_sample,
                        summary.cost.cpu_us_per_sample.unwrap_or_default(),
                    ),
                };
                err!("{network}, batch {batch}, {workers} worker(s): {:.2}", case.samples_per_second.ratio);
                all.cases.push(case);
            }
        }
    }
    print_figures(&all, args.output.json, PlanCases::print)
}

async fn forecast(job: &Path, workers: u64) -> Result<ForecastAnswer, Failure> {
    let mut plan = Command::new(zagros_program()?);
    plan.arg("plan").arg(job).args(["--json", "--servers", "1", "--workers", &workers.to_string()]);
    let ended = plan.output().await.or_internal()?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        return Err(Failure::with_help(Exit::Internal, format!("`zagros plan` failed\n{said}"), "see above"));
    }
    serde_json::from_slice(&ended.stdout).or_internal()
}

fn job_text(network: &str, batch: u64, workers: u64, runs: &Path) -> String {
    let cluster = format!("servers = 1\nworkers = {workers}\n[checkpoint]\nkeep = 0");
    workload::generated_job_text("", network, &format!("batch_size = {batch}"), &cluster, runs)
}

impl PlanCases {
    fn print(&self) {
        const COLUMNS: [&str; 10] = [
            "network",
            "batch",
            "workers",
            "samples/s forecast",
            "measured",
            "ratio",
            "µs of CPU, first worker",
            "measured",
            "ratio",
            "bottleneck",
        ];
        let close_count = |pair: fn(&PlanCase) -> ForecastPair| {
            self.cases.iter().filter(|case| (0.8..=1.25).contains(&pair(case).ratio)).count()
        };
        let mut report = CommandReport::default();
        report.add_lead(&format!("{} core(s); {}", self.cores, self.calibration));
        let rows = self.cases.iter().map(PlanCase::table_cells).collect();
        report.add_title("Forecasts and runs").add_table(ReportTable::new(&COLUMNS, rows)).add_note(&format!(
            "{} of {} within 20 % by samples/s, {} by CPU",
            close_count(|case| case.samples_per_second),
            self.cases.len(),
            close_count(|case| case.worker_cpu)
        ));
        report.print();
    }
}

impl PlanCase {
    fn table_cells(&self) -> Vec<String> {
        let (rate, cpu) = (self.samples_per_second, self.worker_cpu);
        vec![
            self.network.to_owned(),
            self.batch.to_string(),
            self.workers.to_string(),
            format!("{:.0}", rate.forecast),
            format!("{:.0}", rate.measured),
            format!("{:.2}", rate.ratio),
            format!("{:.1}", cpu.forecast),
            format!("{:.1}", cpu.measured),
            format!("{:.2}", cpu.ratio),
            self.bottleneck.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{Job, Overrides};

    use super::*;

    #[test]
    fn every_case_is_a_job() {
        for (_, network) in NETWORKS {
            let job =
                Job::parse(&job_text(network, 512, 2, Path::new("runs")), Path::new("job.toml"), &Overrides::none());
            let job = job.unwrap();
            assert_eq!((job.train.batch_size, job.cluster.workers, job.cluster.servers), (512, 2, 1));
        }
        assert_eq!(ForecastPair::new(3.0, 2.0).ratio, 1.5);
    }
}
