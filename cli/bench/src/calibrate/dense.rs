//! The dense network's step through libtorch, as training makes it.

use std::time::{Duration, Instant};

use zagros_job::{Job, MlpActivation};
use zagros_model::{Backend, DenseModel, LabelledSamples};
use zagros_planner::{Calibration, DenseRates, DenseWork, ProductRate, ThreadSpeedup};
use zagros_plumbing::process::cpu_time;
use zagros_shell::{Exit, Failure, OrFailure};

use crate::workload;

/// Dims of the tables, and the width of the hidden layers that makes the layers about square: 13 numbers and 26 vectors.
const SQUARES: [(usize, usize); 4] = [(1, 16), (2, 64), (10, 256), (39, 1024)];
/// Samples of a small and of a large step.
const BATCHES: [usize; 2] = [128, 1024];
const TIME: Duration = Duration::from_millis(400);
const STEPS: usize = 3;

/// The time of a step as a line: the part that grows with its samples, and the part that does not.
struct StepLine {
    of_sample: f64,
    of_step: f64,
}

pub(crate) fn rates(backend: Backend, cores: usize) -> Result<DenseRates, Failure> {
    let mut products = Vec::new();
    let mut weight_ns = 0.0;
    for (dim, width) in SQUARES {
        let job = network(dim, &square(width), "", 1)?;
        let (line, work) = (line(backend, &job)?, work(&job)?);
        products.push(ProductRate { width: width as f64, gflops: work.flop / line.of_sample / 1e9 });
        // The widest network has so many weights that nothing else of a step counts.
        weight_ns = line.of_step / work.parameters * 1e9;
    }
    // What is not of the products is measured below.
    let mut rates = DenseRates { products, weight_ns, in_training: 1.0, ..Calibration::default().dense };
    rates.value_ns =
        rest(backend, &rates, "kind = \"dcnv2\"\ncross_layers = 3\nhidden = [64]", |work| work.loop_values)?;
    rates.pair_ns = rest(backend, &rates, "kind = \"dlrm\"\nbottom = [64]\ntop = [64]", |work| work.pair_values)?;
    let [_, _, (dim, width), _] = SQUARES;
    let batch = BATCHES[1];
    let plain = step_time(backend, &network(dim, &square(width), "", 1)?, batch)?;
    let mut by_autograd = network(dim, &square(width), "", 1)?;
    by_autograd.mlp.activation = MlpActivation::LeakyRelu;
    if backend.autograd.is_some() {
        rates.autograd = step_time(backend, &by_autograd, batch)? / plain;
    }
    rates.bf16 = plain / step_time(backend, &network(dim, &square(width), "precision = \"bf16\"", 1)?, batch)?;
    rates.threads = speedups(backend, cores, dim, width)?;
    Ok(rates)
}

/// Times as fast as one thread, on all cores and on half of them.
fn speedups(backend: Backend, cores: usize, dim: usize, width: usize) -> Result<Vec<ThreadSpeedup>, Failure> {
    let batch = workload::BATCH;
    let alone = step_time(backend, &network(dim, &square(width), "", 1)?, batch)?;
    let mut speedups = Vec::new();
    for threads in [cores / 2, cores].into_iter().filter(|threads| *threads > 1) {
        // The shares of a step meet twice. With a core for each, what they lose is what they take more of CPU.
        let parallel = step_time(backend, &network(dim, &square(width), "", threads)?, batch)?;
        let most = threads as f64;
        speedups.push(ThreadSpeedup { threads: most, speedup: (most * alone / parallel).clamp(1.0, most) });
    }
    if speedups.is_empty() {
        speedups.push(ThreadSpeedup { threads: 1.0, speedup: 1.0 });
    }
    Ok(speedups)
}

fn square(width: usize) -> String {
    format!("kind = \"ffnn\"\nhidden = [{width}, {width}, {width}]")
}

/// A job with 13 numbers and 26 tables of `dim`.
fn network(dim: usize, model: &str, train: &str, threads: usize) -> Result<Job, Failure> {
    workload::parse_job(&workload::job_text(dim, model, &format!("threads = {threads}\n{train}"), ""))
}

/// ns of what the rates do not explain of a step, for each of what `counted` counts.
fn rest(backend: Backend, rates: &DenseRates, model: &str, counted: fn(&DenseWork) -> f64) -> Result<f64, Failure> {
    let job = network(16, model, "", 1)?;
    let (line, work) = (line(backend, &job)?, work(&job)?);
    let known: f64 =
        work.products.iter().map(|product| product.flop() / rates.product_gflops(product.read, product.write)).sum();
    Ok((line.of_sample * 1e9 - known).max(0.0) / counted(&work))
}

fn work(job: &Job) -> Result<DenseWork, Failure> {
    DenseWork::from_job(job)
        .ok_or_else(|| Failure::with_help(Exit::Internal, "no built-in network".to_owned(), "this is a bug"))
}

fn line(backend: Backend, job: &Job) -> Result<StepLine, Failure> {
    let [small, large] = BATCHES;
    let (at_small, at_large) = (step_time(backend, job, small)?, step_time(backend, job, large)?);
    let of_sample = (at_large - at_small) / (large - small) as f64;
    let of_sample = if of_sample > 0.0 { of_sample } else { at_large / large as f64 };
    Ok(StepLine { of_sample, of_step: (at_small - of_sample * small as f64).max(0.0) })
}

/// The median CPU time of a step, seconds.
fn step_time(backend: Backend, job: &Job, batch: usize) -> Result<f64, Failure> {
    let mut model = DenseModel::new(job, backend).or_internal()?;
    let (numeric, width) = (job.features.numeric_values(), model.input_columns().width);
    let values = |count: usize| -> Vec<f32> { (0..count).map(|at| (at % 17) as f32 / 17.0 - 0.5).collect() };
    let (numeric, embeddings) = (values(numeric * batch), values(width * batch));
    let labels: Vec<f32> = (0..batch).map(|sample| f32::from(sample % 4 == 0)).collect();
    let mut step = || {
        let samples = LabelledSamples { numeric: &numeric, embeddings: &embeddings, labels: &labels, weights: &[] };
        let start = cpu_time();
        model.step_on(samples).or_internal()?;
        Ok::<_, Failure>((cpu_time() - start).as_secs_f64())
    };
    step()?;
    let (started, mut times) = (Instant::now(), Vec::new());
    while times.len() < STEPS || started.elapsed() < TIME {
        times.push(step()?);
    }
    Ok(workload::middle_value(times.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_step_takes_longer_and_its_rates_are_positive() {
        let job = network(2, &square(64), "", 1).unwrap();
        let time = |batch| step_time(Backend::default(), &job, batch).unwrap();
        let (small, large) = (time(64), time(2048));
        assert!(large > small && small > 0.0, "{small} {large}");
        let line = line(Backend::default(), &job).unwrap();
        assert!(line.of_sample > 0.0 && line.of_step >= 0.0);
    }
}
