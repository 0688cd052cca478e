//! `zagros-bench train`: the training loop on a fixed workload from memory, and how much time each stage takes.

use std::sync::Arc;

use serde::Serialize;
use zagros_dense_worker::{Worker, WorkerInput};
use zagros_ingest::Batch;
use zagros_job::Job;
use zagros_shell::{Exit, Failure, OrFailure, out, print_answer};

use crate::args::{DenseModel, MatrixPrecision, TrainArgs};
use zagros_calibrate::meter::{MeterWindow, StepMeter};
use zagros_calibrate::workload;
use zagros_shell::launch::EmbeddedCluster;

#[derive(Debug, Serialize)]
struct TrainFigures {
    workload: &'static str,
    model: &'static str,
    dim: usize,
    torch_threads: usize,
    precision: MatrixPrecision,
    staleness: usize,
    samples: u64,
    /// User and system time of the whole process, per sample.
    cpu_us_per_sample: f64,
    samples_per_second: f64,
    /// Stages overlap, each on its own thread. `lookup` and `push` are the times from request to answer.
    split_us_per_sample: StageSplit,
    loss: f64,
}

#[derive(Debug, Serialize)]
struct StageSplit {
    parse: f64,
    dedup: f64,
    lookup: f64,
    gather: f64,
    dense: f64,
    scatter: f64,
    push: f64,
}

pub(crate) async fn run(args: TrainArgs) -> Result<Exit, Failure> {
    let (warm_up, counted) = if args.quick { (2, 3) } else { (args.warm, args.steps) };
    let batches = workload::load_batches(args.data.as_deref(), (warm_up + counted) as usize)?;
    let window = train(&args, job(&args, warm_up + counted)?, batches, warm_up).await?;
    let figures = figures(&args, &window);
    if args.json {
        print_answer(&serde_json::to_string(&figures).or_internal()?)?;
    } else {
        print(&figures);
    }
    Ok(Exit::Success)
}

/// The job that every compared system trains, with Adam 0.001 for the dense network.
fn job(args: &TrainArgs, steps: u64) -> Result<Job, Failure> {
    let model = match args.model {
        DenseModel::Dlrm => "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]",
        DenseModel::Ffnn => "kind = \"ffnn\"\nhidden = [1024, 512, 256]",
    };
    let (threads, staleness) = (args.threads, args.staleness);
    let precision = name(args.precision);
    let train =
        format!("threads = {threads}\nstaleness = {staleness}\nmax_steps = {steps}\nprecision = \"{precision}\"");
    workload::parse_job(&workload::job_text(args.dim, model, &train, ""))
}

fn name(precision: MatrixPrecision) -> &'static str {
    match precision {
        MatrixPrecision::F32 => "f32",
        MatrixPrecision::Bf16 => "bf16",
        MatrixPrecision::F16 => "f16",
    }
}

/// The measures between the end of the warm-up and the last step.
async fn train(args: &TrainArgs, job: Job, batches: Vec<Batch>, warm_up: u64) -> Result<MeterWindow, Failure> {
    let EmbeddedCluster { control, connect, registry } = EmbeddedCluster::start(&job).await?;
    let meter = Arc::new(StepMeter::new(registry.clone(), warm_up));
    let worker = Worker { observer: meter.clone(), ..Worker::without_peers(job, control, connect, registry) };
    let ran = worker.run_on(WorkerInput::Preloaded(Arc::new(batches))).await;
    ran.or_internal()?;
    meter.measured_window().ok_or_else(|| {
        let what = format!("no step was counted: {} wanted after {warm_up} to warm up", args.steps);
        Failure::usage(what, "ask for at least 1 with --steps")
    })
}

fn figures(args: &TrainArgs, window: &MeterWindow) -> TrainFigures {
    let samples = window.samples as f64;
    let stage = |name: &str| window.stage_seconds(name) / samples * 1e6;
    TrainFigures {
        workload: "crit-zipf",
        model: match args.model {
            DenseModel::Dlrm => "dlrm",
            DenseModel::Ffnn => "ffnn",
        },
        dim: args.dim,
        torch_threads: args.threads,
        precision: args.precision,
        staleness: args.staleness,
        samples: window.samples,
        cpu_us_per_sample: window.cpu_seconds / samples * 1e6,
        samples_per_second: samples / window.seconds,
        split_us_per_sample: StageSplit {
            parse: stage("parse"),
            dedup: stage("dedup"),
            lookup: stage("lookup"),
            gather: stage("gather"),
            dense: stage("dense"),
            scatter: stage("scatter"),
            push: stage("push"),
        },
        loss: window.loss,
    }
}

fn print(figures: &TrainFigures) {
    let TrainFigures { workload, model, dim, torch_threads, precision, staleness, samples, loss, .. } = figures;
    let precision = name(*precision);
    out!("{workload}: {model}, dim {dim}, {torch_threads} torch thread(s), {precision}, staleness {staleness}");
    out!("  {samples} samples after the warm-up, last loss {loss:.4}");
    out!("  {:>9.1} µs of CPU a sample, all threads", figures.cpu_us_per_sample);
    out!("  {:>9.0} samples/s", figures.samples_per_second);
    out!("  split, µs a sample (stages overlap; lookup and push run from request to answer):");
    let split = &figures.split_us_per_sample;
    let stages = [
        ("parse", split.parse),
        ("dedup", split.dedup),
        ("lookup", split.lookup),
        ("gather", split.gather),
        ("dense", split.dense),
        ("scatter", split.scatter),
        ("push", split.push),
    ];
    for (name, time) in stages {
        out!("  {time:>9.2} {name}");
    }
}
