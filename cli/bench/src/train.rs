//! `zagros-bench train`: the training loop on a fixed workload from memory, and how much time each stage takes.

use std::collections::BTreeMap;

use serde::Serialize;
use zagros_bench::workload::{self, MeterWindow, measure_steps};
use zagros_job::Job;
use zagros_shell::{Exit, Failure, out, print_figures};

use crate::args::TrainArgs;

#[derive(Debug, Serialize)]
struct TrainFigures {
    workload: &'static str,
    model: String,
    dim: usize,
    torch_threads: usize,
    precision: String,
    staleness: usize,
    samples: u64,
    /// User and system time of the whole process, per sample.
    cpu_us_per_sample: f64,
    samples_per_second: f64,
    /// Stages overlap, each on its own thread. `lookup` and `push` are the times from request to answer.
    split_us_per_sample: BTreeMap<&'static str, f64>,
    loss: f64,
}

const STAGES: [&str; 7] = ["parse", "dedup", "lookup", "gather", "dense", "scatter", "push"];

pub(crate) async fn run(args: TrainArgs) -> Result<Exit, Failure> {
    let (warm_up, counted) = if args.output.quick { (2, 3) } else { (args.warm, args.steps) };
    let batches = workload::make_batches((warm_up + counted) as usize);
    let job = job(&args, warm_up + counted)?;
    let window = measure_steps(zagros_torch::fastest_backend(), job, batches, warm_up).await?;
    let figures = figures(&args, &window);
    print_figures(&figures, args.output.json, print)
}

/// The job that every compared system trains, with Adam 0.001 for the dense network.
fn job(args: &TrainArgs, steps: u64) -> Result<Job, Failure> {
    let model = match args.model.as_str() {
        "ffnn" => "kind = \"ffnn\"\nhidden = [1024, 512, 256]",
        _ => "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]",
    };
    let TrainArgs { threads, staleness, precision, .. } = args;
    let train =
        format!("threads = {threads}\nstaleness = {staleness}\nmax_steps = {steps}\nprecision = \"{precision}\"");
    workload::parse_job(&workload::job_text(args.dim, model, &train, ""))
}

fn figures(args: &TrainArgs, window: &MeterWindow) -> TrainFigures {
    let samples = window.samples as f64;
    TrainFigures {
        workload: "crit-zipf",
        model: args.model.clone(),
        dim: args.dim,
        torch_threads: args.threads,
        precision: args.precision.clone(),
        staleness: args.staleness,
        samples: window.samples,
        cpu_us_per_sample: window.cpu_seconds / samples * 1e6,
        samples_per_second: samples / window.seconds,
        split_us_per_sample: BTreeMap::from(STAGES.map(|name| (name, window.stage_seconds(name) / samples * 1e6))),
        loss: window.loss,
    }
}

fn print(figures: &TrainFigures) {
    let TrainFigures { workload, model, dim, torch_threads, precision, staleness, samples, loss, .. } = figures;
    out!("{workload}: {model}, dim {dim}, {torch_threads} torch thread(s), {precision}, staleness {staleness}");
    out!("  {samples} samples after the warm-up, last loss {loss:.4}");
    out!("  {:>9.1} µs of CPU a sample, all threads", figures.cpu_us_per_sample);
    out!("  {:>9.0} samples/s", figures.samples_per_second);
    out!("  split, µs a sample (stages overlap; lookup and push run from request to answer):");
    for name in STAGES {
        out!("  {:>9.2} {name}", figures.split_us_per_sample[name]);
    }
}
