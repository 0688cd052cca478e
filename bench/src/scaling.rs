//! `zagros-bench scaling`: one job with one dense worker, then with several, each role a process. By default the batch
//! of all workers together stays the same, so all runs make the same steps and end with the same AUC up to chance.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use zagros_dense_worker::RunSummary;
use zagros_ingest::synthetic::{SyntheticSpec, generate_criteo};
use zagros_shell::{Exit, Failure, OrFailure, err, out, print_figures};

use crate::args::ScalingArgs;
use crate::program::{self, UpRun};

/// Training rows of `--quick`, and its batch size.
const QUICK: (u64, usize) = (20_000, 512);
/// Learning rate of the dense network's Adam.
const RATE: f64 = 0.001;

#[derive(Debug, Serialize)]
struct ScalingFigures {
    cores: usize,
    rows: u64,
    servers: u32,
    batch: BatchSize,
    runs: Vec<ScalingRun>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct BatchSize {
    samples: usize,
    /// Whether this is the batch of each worker, instead of all workers.
    grows: bool,
}

impl BatchSize {
    /// Adam's steps do not grow with the gradient, so its learning rate takes the square root of the batch's growth.
    fn of_each(self, workers: u32) -> (usize, f64) {
        if self.grows {
            return (self.samples, RATE * f64::from(workers).sqrt());
        }
        (self.samples.div_ceil(workers as usize), RATE)
    }
}

#[derive(Debug, Serialize)]
struct ScalingRun {
    workers: u32,
    steps: u64,
    /// Samples per second of training, without start and scoring.
    samples_per_second: f64,
    /// The same divided by that of the first run.
    ratio: f64,
    /// CPU of all processes, from start to end, per trained sample.
    cpu_us_per_sample: f64,
    /// The shares of its time in which the first worker's step thread waited for batches, and for other workers.
    waiting_share: f64,
    reduce_share: f64,
    /// AUC of the held-out rows, at the end.
    auc: Option<f64>,
}

pub(crate) async fn run(args: ScalingArgs) -> Result<Exit, Failure> {
    let (rows, samples) = if args.quick { QUICK } else { (args.rows, args.batch) };
    let batch = BatchSize { samples, grows: args.grow_batch };
    let folder = TempDir::new().or_internal()?;
    let spec = SyntheticSpec { rows, test_rows: rows / 4, ..SyntheticSpec::default() };
    generate_criteo(&spec, folder.path()).or_internal()?;
    let cores = zagros_job::threads::core_count();
    let job_file = folder.path().join("job.toml");
    let mut figures = ScalingFigures { cores, rows, servers: args.servers, batch, runs: Vec::new() };
    for workers in args.workers {
        let workers = u32::try_from(workers).or_internal()?;
        // Each run has its own folder, so that it does not resume another one.
        let runs = folder.path().join(format!("runs-{}", figures.runs.len()));
        std::fs::write(&job_file, job(args.servers, workers, batch, &runs)).or_internal()?;
        let run = train(&job_file, &runs, workers, figures.runs.first()).await?;
        err!("{workers} worker(s): {:.0} samples/s", run.samples_per_second);
        figures.runs.push(run);
    }
    print_figures(&figures, args.json, print)
}

/// A job with one parser thread and one network thread per worker.
fn job(servers: u32, workers: u32, batch: BatchSize, runs: &Path) -> String {
    let (each, dense) = batch.of_each(workers);
    let model =
        format!("kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]\n[optimizer]\nkind = \"adam\"\nlr = {dense}");
    let (data, train) = ("test = \"test.txt\"\nthreads = 1", format!("batch_size = {each}\nthreads = 1"));
    let cluster = format!("servers = {servers}\nworkers = {workers}");
    program::job_text(&format!("scaling-{workers}"), data, &model, &train, &cluster, runs)
}

async fn train(job: &Path, runs: &Path, workers: u32, first: Option<&ScalingRun>) -> Result<ScalingRun, Failure> {
    let UpRun { summary, cpu } =
        program::run_up(job, runs, &format!("training with {workers} dense worker(s)")).await?;
    Ok(figures(workers, &summary, cpu, first))
}

fn figures(workers: u32, summary: &RunSummary, cpu: Duration, first: Option<&ScalingRun>) -> ScalingRun {
    let rate = summary.samples_per_second;
    let share = |seconds: f64| if summary.seconds > 0.0 { seconds / summary.seconds } else { 0.0 };
    ScalingRun {
        workers,
        steps: summary.steps,
        samples_per_second: rate,
        ratio: first.map_or(1.0, |first| rate / first.samples_per_second),
        cpu_us_per_sample: cpu.as_secs_f64() / summary.samples.max(1) as f64 * 1e6,
        waiting_share: share(summary.stages.waiting),
        reduce_share: share(summary.stages.reduce),
        auc: summary.evaluation.and_then(|evaluation| evaluation.auc),
    }
}

fn print(figures: &ScalingFigures) {
    let ScalingFigures { cores, rows, servers, batch, runs } = figures;
    let (samples, of) = (batch.samples, if batch.grows { "each worker" } else { "all workers together" });
    out!("{rows} rows, DLRM, dim 16, batch {samples} of {of}, {servers} server(s), {cores} core(s);");
    out!("every role a process, one thread for the network of each worker\n");
    out!("workers   samples/s   ratio   CPU µs a sample   waiting for batches   for workers      AUC   steps");
    for run in runs {
        out!(
            "{:>7} {:>11.0} {:>7.2} {:>17.1} {:>19.1} % {:>11.1} % {:>8} {:>7}",
            run.workers,
            run.samples_per_second,
            run.ratio,
            run.cpu_us_per_sample,
            100.0 * run.waiting_share,
            100.0 * run.reduce_share,
            run.auc.map_or_else(|| "-".to_owned(), |auc| format!("{auc:.4}")),
            run.steps
        );
    }
    let most = runs.iter().map(|run| run.workers as usize).max().unwrap_or(1);
    if 2 * most > *cores {
        out!(
            "\n{most} worker(s) compute and parse with {} threads: {cores} core(s) cannot show how they scale",
            2 * most
        );
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{Job, Overrides};

    use super::*;

    #[test]
    fn the_batch_of_all_workers_stays_the_same() {
        for (workers, each) in [(1, 4096), (2, 2048), (3, 1366), (4, 1024)] {
            let text = job(2, workers, BatchSize { samples: 4096, grows: false }, Path::new("runs"));
            let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
            assert_eq!((job.train.batch_size, job.train.threads, job.cluster.workers), (each, 1, workers));
            assert_eq!(job.cluster.servers, 2);
        }
    }

    #[test]
    fn a_batch_that_grows_with_the_workers_has_a_higher_learning_rate() {
        let (each, rate) = BatchSize { samples: 4096, grows: true }.of_each(4);
        assert_eq!(each, 4096);
        assert!((rate - 2.0 * RATE).abs() < 1e-12);
    }

    #[test]
    fn a_run_is_compared_with_the_first_one() {
        let summary: RunSummary = serde_json::from_value(serde_json::json!({
            "outcome": "finished", "steps": 10, "skipped_steps": 0, "samples": 1000, "seconds": 2.0,
            "samples_per_second": 500.0, "loss": 0.5, "train_auc": null, "evaluation": null, "rows": 0,
            "table_bytes": 0, "staleness": {"max": 0, "mean": 0.0}, "bad_rows": 0, "peak_rss_bytes": null,
            "stages": {"parse": 0.0, "dedup": 0.0, "lookup": 0.0, "gather": 0.0, "dense": 0.0, "scatter": 0.0,
                       "push": 0.0, "waiting": 0.5, "reduce": 1.0},
        }))
        .unwrap();
        let first = figures(1, &summary, Duration::from_millis(20), None);
        assert_eq!((first.ratio, first.waiting_share, first.reduce_share, first.auc), (1.0, 0.25, 0.5, None));
        assert!((first.cpu_us_per_sample - 20.0).abs() < 1e-9);
        let faster = RunSummary { samples_per_second: 900.0, ..summary };
        assert_eq!(figures(2, &faster, Duration::ZERO, Some(&first)).ratio, 1.8);
    }
}
