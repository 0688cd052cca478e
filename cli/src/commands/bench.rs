//! `zagros bench train`: the training loop on a fixed workload from memory, and where each microsecond goes.

use std::sync::Arc;

use serde::Serialize;
use zagros_coordinator::LocalCoordinator;
use zagros_dense_worker::{Input, Worker};
use zagros_ingest::Batch;
use zagros_ingest::synthetic::crit_zipf::{CritZipf, Vocabulary};
use zagros_job::{Job, Overrides};
use zagros_plumbing::lifecycle::{Shutdown, Signals};
use zagros_plumbing::metrics::Registry;

use crate::args::{BenchModel, BenchTrainArgs};
use crate::embedded::Embedded;
use crate::exit::{Exit, Failure, OrInternal};
use crate::meter::{Meter, Window};
use crate::print::{answer, out};
use crate::report;

/// Samples per step, as every peer runs this workload.
const BATCH: usize = 4096;
/// Steps before the counted ones: tables grow, caches warm, threads start.
const WARM_UP: u64 = 20;

/// What is printed.
#[derive(Debug, Serialize)]
struct Figures {
    workload: &'static str,
    model: &'static str,
    dim: usize,
    torch_threads: usize,
    staleness: usize,
    samples: u64,
    /// User and system time of the whole process over samples.
    cpu_us_per_sample: f64,
    samples_per_second: f64,
    /// Time of each stage on its own thread over samples. Stages overlap; `lookup` and `push` run from request to
    /// answer, so they include waiting.
    split_us_per_sample: Split,
    loss: f64,
}

#[derive(Debug, Serialize)]
struct Split {
    parse: f64,
    dedup: f64,
    lookup: f64,
    gather: f64,
    dense: f64,
    scatter: f64,
    push: f64,
}

/// Warms up, counts, prints.
pub(crate) async fn train(args: BenchTrainArgs) -> Result<Exit, Failure> {
    let (warm_up, counted) = if args.quick { (2, 3) } else { (WARM_UP, args.steps) };
    let batches = workload(&args, (warm_up + counted) as usize)?;
    let window = run(&args, job(&args, warm_up + counted)?, batches, warm_up).await?;
    let figures = figures(&args, &window);
    if args.json {
        answer(&serde_json::to_string(&figures).or_internal()?)?;
    } else {
        print(&figures);
    }
    Ok(Exit::Success)
}

/// The workload's first `steps` batches.
fn workload(args: &BenchTrainArgs, steps: usize) -> Result<Vec<Batch>, Failure> {
    let workload = match &args.data {
        Some(folder) => CritZipf::load(folder).map_err(|error| Failure::from_error(Exit::Data, error))?,
        None => CritZipf::generate(Vocabulary::Small, steps * BATCH),
    };
    let batches: Option<Vec<Batch>> = (0..steps).map(|step| workload.batch(step * BATCH..(step + 1) * BATCH)).collect();
    batches.ok_or_else(|| {
        let held = workload.samples() / BATCH;
        let what = format!("the workload holds {held} batches of {BATCH}, fewer than the {steps} wanted");
        Failure::with_help(Exit::Usage, what, "ask for fewer with --steps")
    })
}

/// The workload's job: what every peer trains (13 numbers, 26 tables, Adagrad 0.01, Adam 0.001).
fn job(args: &BenchTrainArgs, steps: u64) -> Result<Job, Failure> {
    let model = match args.model {
        BenchModel::Dlrm => "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]",
        BenchModel::Ffnn => "kind = \"ffnn\"\nhidden = [1024, 512, 256]",
    };
    let text = format!(
        r#"
        name = "crit-zipf"
        [data]
        format = "criteo"
        train = "memory"
        [embedding]
        dim = {dim}
        init = {{ kind = "uniform", bound = 0.01 }}
        optimizer = {{ kind = "adagrad", lr = 0.01, epsilon = 1e-10 }}
        [model]
        {model}
        [optimizer]
        kind = "adam"
        lr = 0.001
        [train]
        batch_size = {BATCH}
        threads = {threads}
        staleness = {staleness}
        max_steps = {steps}
        [output]
        save_model = false
        tensorboard = false
        "#,
        dim = args.dim,
        threads = args.threads,
        staleness = args.staleness,
    );
    let job = Job::parse(&text, "the benchmark's job".as_ref(), &Overrides::none());
    job.map_err(|errors| Failure::new(Exit::Usage, errors))
}

/// What happened between the end of the warm-up and the last step.
async fn run(args: &BenchTrainArgs, job: Job, batches: Vec<Batch>, warm_up: u64) -> Result<Window, Failure> {
    let registry = Registry::new();
    let control = LocalCoordinator::new(&job, &registry);
    let servers = Embedded::start(&job, control.clone(), &registry).await?;
    let meter = Arc::new(Meter::new(registry.clone(), warm_up));
    let worker = Worker {
        job,
        control,
        connect: servers.connect(),
        index: 0,
        registry,
        observer: meter.clone(),
        folder: None,
        shutdown: Shutdown::new(),
    };
    let ran = worker.run_on(Input::Preloaded(Arc::new(batches))).await;
    ran.map_err(|error| report::failure(error, &Signals::default()))?;
    meter.window().ok_or_else(|| {
        let what = format!("no step was counted: {} wanted after {warm_up} to warm up", args.steps);
        Failure::with_help(Exit::Usage, what, "ask for at least 1 with --steps")
    })
}

fn figures(args: &BenchTrainArgs, window: &Window) -> Figures {
    let samples = window.samples as f64;
    let stage = |name: &str| window.stage_seconds(name) / samples * 1e6;
    Figures {
        workload: "crit-zipf",
        model: match args.model {
            BenchModel::Dlrm => "dlrm",
            BenchModel::Ffnn => "ffnn",
        },
        dim: args.dim,
        torch_threads: args.threads,
        staleness: args.staleness,
        samples: window.samples,
        cpu_us_per_sample: window.cpu_seconds / samples * 1e6,
        samples_per_second: samples / window.seconds,
        split_us_per_sample: Split {
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

fn print(figures: &Figures) {
    let Figures { workload, model, dim, torch_threads, staleness, samples, loss, .. } = figures;
    out!("{workload}: {model}, dim {dim}, {torch_threads} torch thread(s), staleness {staleness}");
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
