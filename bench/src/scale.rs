//! `zagros-bench scale`: one run whose embedding servers and dense workers come and go while it trains, each role a
//! process.
//!
//! A stop of training is seen to a step's length, in the run's own record of its steps (`metrics.jsonl`).

mod live_run;

use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use zagros_shell::{Exit, Failure, OrFailure, err, out, print_figures};

use self::live_run::{LAST_RECORDED, LiveRun, MoveStatus, StepTimes};
use crate::args::ScaleArgs;
use zagros_calibrate::workload;

/// Members at the start: embedding servers and dense workers.
const START: (u32, u32) = (2, 1);
/// What is asked for, one after the other.
const CHANGES: [&str; 4] = ["servers=4", "servers=3", "workers=3", "workers=2"];
const MOST_WORKERS: u32 = 3;

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ScaleSize {
    samples: u64,
    batch: usize,
    /// Training between two changes, seconds.
    window: f64,
}

const QUICK: ScaleSize = ScaleSize { samples: 20_000, batch: 512, window: 2.0 };

#[derive(Debug, Default, Serialize)]
struct ScaleFigures {
    cores: usize,
    size: ScaleSize,
    changes: Vec<ChangeFigures>,
    /// The longest time between two steps before the first change, seconds.
    longest_undisturbed: f64,
    steps: u64,
    #[serde(flatten)]
    moves: MoveStatus,
}

#[derive(Debug, Serialize)]
struct ChangeFigures {
    asked: &'static str,
    /// From the request until the run has these numbers.
    seconds: f64,
    samples_per_second_before: f64,
    samples_per_second_during: f64,
    samples_per_second_after: f64,
    /// The longest time between two steps, from the request to the end of the window after it.
    longest_stop: f64,
    /// The longest freeze of a server since the run began.
    longest_freeze_so_far: f64,
}

pub(crate) async fn run(args: ScaleArgs) -> Result<Exit, Failure> {
    let size = ScaleSize { samples: args.samples, batch: args.batch, window: args.window };
    let size = if args.quick { QUICK } else { size };
    let folder = TempDir::new().or_internal()?;
    workload::write_rows(&folder.path().join("train.csv"), size.samples)?;
    let job_file = folder.path().join("job.toml");
    std::fs::write(&job_file, job(size)).or_internal()?;
    let run = LiveRun::start(&job_file, &folder.path().join("runs")).await?;
    let window = Duration::from_secs_f64(size.window);
    let undisturbed = live_run::unix_seconds();
    run.wait_for_step(window).await?;
    let undisturbed = undisturbed..live_run::unix_seconds();
    let mut figures = ScaleFigures { cores: zagros_job::threads::core_count(), size, ..ScaleFigures::default() };
    let mut spans = Vec::new();
    for asked in CHANGES {
        run.wait_for_step(window).await?;
        let began = live_run::unix_seconds();
        run.ask_scale(asked).await?;
        let ended = live_run::unix_seconds();
        run.wait_for_step(window).await?;
        figures.moves = run.move_status().await?;
        err!("{asked}: {:.1} s", ended - began);
        spans.push((asked, began..ended, figures.moves.longest_freeze_seconds));
    }
    let times = StepTimes::read(&run.metrics_file())?;
    run.stop_run().await?;
    figures.steps = times.last_step();
    figures.longest_undisturbed = times.longest_gap(undisturbed);
    for (asked, span, freeze) in spans {
        figures.changes.push(ChangeFigures {
            asked,
            seconds: span.end - span.start,
            samples_per_second_before: times.samples_per_second(span.start - size.window..span.start),
            samples_per_second_during: times.samples_per_second(span.clone()),
            samples_per_second_after: times.samples_per_second(span.end..span.end + size.window),
            longest_stop: times.longest_gap(span.start..span.end + size.window),
            longest_freeze_so_far: freeze,
        });
    }
    print_figures(&figures, args.json, print)
}

/// The job on the rows of `train.csv`, with more epochs than the benchmark waits for.
fn job(size: ScaleSize) -> String {
    let (servers, workers) = START;
    let model = "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]";
    let cluster = format!("servers = {servers}\nworkers = {workers}\nmin_workers = 1\nmax_workers = {MOST_WORKERS}");
    let text = workload::job_text(16, model, "threads = 1\nepochs = 10000", &cluster);
    let text = text.replace("format = \"criteo\"", "format = \"delimited\"").replace("\"memory\"", "\"train.csv\"");
    let batch = format!("batch_size = {}", size.batch);
    text.replace(&format!("batch_size = {}", workload::BATCH), &batch) + &workload::features_section()
}

fn print(figures: &ScaleFigures) {
    let ScaleFigures { cores, size, changes, .. } = figures;
    let (servers, workers) = START;
    out!(
        "crit-zipf, DLRM, dim 16, batch {} a worker, {servers} embedding servers and {workers} dense worker(s) at the start,",
        size.batch
    );
    out!("{cores} core(s); samples/s in {} s before, during and {} s after each change\n", size.window, size.window);
    out!("asked for   seconds   before   during    after   longest stop   longest freeze so far");
    for change in changes {
        out!(
            "{:<9} {:>9.1} {:>8.0} {:>8.0} {:>8.0} {:>12.0} ms {:>20.1} ms",
            change.asked,
            change.seconds,
            change.samples_per_second_before,
            change.samples_per_second_during,
            change.samples_per_second_after,
            1e3 * change.longest_stop,
            1e3 * change.longest_freeze_so_far
        );
    }
    out!(
        "\n{} moves, {} given up; {} rows, {:.1} MiB; longest time between two steps before the first change: {:.0} ms",
        figures.moves.moves_committed,
        figures.moves.moves_abandoned,
        figures.moves.rows_moved,
        figures.moves.bytes_moved as f64 / f64::from(1 << 20),
        1e3 * figures.longest_undisturbed
    );
    explain(figures);
}

fn explain(figures: &ScaleFigures) {
    out!(
        "\nHow to read it: a stop is the time between two steps, from the request to the end of the window after it. It is at"
    );
    out!(
        "least a step's length: compare it with the longest time before the first change. A freeze is the part of a move in"
    );
    out!(
        "in which a server answers no request. All roles share the {} core(s) of this machine: new processes",
        figures.cores
    );
    out!("take them from training, and more workers need not be faster.");
    if figures.steps > LAST_RECORDED {
        out!(
            "The run made {} steps, and records one a second after step {LAST_RECORDED}: later stops are",
            figures.steps
        );
        out!("seen to a second only. Give a larger --batch or a shorter --window.");
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{Job, Overrides};

    use super::*;

    #[test]
    fn the_job_starts_with_the_members_and_may_grow() {
        let job = Job::parse(&job(QUICK), "job.toml".as_ref(), &Overrides::none()).unwrap();
        assert_eq!((job.cluster.servers, job.cluster.workers), START);
        assert_eq!((job.cluster.least_workers(), job.cluster.most_workers()), (1, MOST_WORKERS));
        assert_eq!((job.train.batch_size, job.features.categorical.len()), (QUICK.batch, 26));
    }
}
