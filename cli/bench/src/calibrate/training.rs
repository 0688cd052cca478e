//! Whole steps of a training in one process: what they cost beside the stages that are measured alone.

use zagros_ingest::Batch;
use zagros_job::Job;
use zagros_model::Backend;
use zagros_planner::{DenseRates, DenseWork, IdCosts, StepCosts};
use zagros_shell::{Exit, Failure};

use super::rows::RowMeasurement;
use crate::workload::{self, MeterWindow, measure_steps};

const BATCHES: usize = 16;
/// Parts of a batch that make the small steps.
const PARTS: usize = 16;

/// ns of CPU a sample, of all threads.
fn cpu_ns(window: &MeterWindow) -> f64 {
    window.cpu_seconds * 1e9 / window.samples.max(1) as f64
}

pub(crate) struct TrainingCosts {
    pub(crate) ids: IdCosts,
    pub(crate) step: StepCosts,
    /// How many times longer the dense step takes in a training than alone.
    pub(crate) in_training: f64,
}

/// The most that a dense step is taken to be slower in a training. More is another program's doing.
const MOST_SLOWER: f64 = 1.5;
/// A network without hidden layers, and one that takes most of a step.
const NETWORKS: [&str; 2] = ["hidden = []", "hidden = [256, 256, 256]"];

/// The costs of ids and of the training loop, from runs with rows of two dims and with large and small steps.
pub(crate) async fn costs(
    backend: Backend,
    dense: &DenseRates,
    rows: &[RowMeasurement],
) -> Result<TrainingCosts, Failure> {
    let [narrow, wide] = rows else {
        return Err(Failure::with_help(Exit::Internal, "rows of two dims are measured".to_owned(), "this is a bug"));
    };
    let batches = workload::make_batches(BATCHES);
    let small: Vec<Batch> = batches.iter().flat_map(parts).collect();
    let (dim, batch) = (narrow.cost.dim, workload::BATCH);
    let move_value = ((wide.moved - narrow.moved) / (wide.cost.dim - dim)).max(0.0);
    let move_id = (narrow.moved - move_value * dim).max(0.0);
    let ids = IdCosts { dedup: narrow.dedup, move_id, move_value };
    // Of small batches more ids are distinct.
    let share = distinct_share(&parts(&batches[0])) / distinct_share(&batches[..1]);
    let [without, with] = NETWORKS;
    let job = |network: &str, batch: usize| workload::parse_job(&job_text(dim as usize, network, batch));
    let rest = |cpu: f64, batch: usize, share: f64| -> Result<f64, Failure> {
        let rows = narrow.rows * share * (narrow.cost.lookup + narrow.cost.push);
        let known = rows + narrow.ids * (narrow.dedup + narrow.moved) + dense_step(dense, &job(without, batch)?, batch);
        Ok((cpu - known).max(0.0))
    };
    let run = async |job: Job, batches: Vec<Batch>| {
        // The first epoch is not counted.
        let warm_up = batches.len() as u64;
        measure_steps(backend, job, batches, warm_up).await.map(|window| cpu_ns(&window))
    };
    let cpu = run(job(without, batch)?, batches.clone()).await?;
    let of_small = run(job(without, batch / PARTS)?, small).await?;
    let of_network = run(job(with, batch)?, batches).await?;
    let (large, small) = (rest(cpu, batch, 1.0)?, rest(of_small, batch / PARTS, share)?);
    let each = [1.0 / batch as f64, PARTS as f64 / batch as f64];
    let step = ((small - large) / (each[1] - each[0])).max(0.0);
    let more = dense_step(dense, &job(with, batch)?, batch) - dense_step(dense, &job(without, batch)?, batch);
    let in_training = ((of_network - cpu) / more).clamp(1.0, MOST_SLOWER);
    Ok(TrainingCosts { ids, step: StepCosts { sample: (large - step * each[0]).max(0.0), step }, in_training })
}

/// ns a sample of the dense step of a job.
fn dense_step(dense: &DenseRates, job: &Job, batch: usize) -> f64 {
    let Some(work) = DenseWork::from_job(job) else { return 0.0 };
    let products: f64 =
        work.products.iter().map(|product| product.flop() / dense.product_gflops(product.read, product.write)).sum();
    products + work.parameters * dense.weight_ns / batch as f64
}

fn job_text(dim: usize, network: &str, batch: usize) -> String {
    // The rows of the first epoch are created, and are not counted.
    let train = "threads = 1\nstaleness = 4\nepochs = 2";
    let text = workload::job_text(dim, &format!("kind = \"ffnn\"\n{network}"), train, "");
    text.replace(&format!("batch_size = {}", workload::BATCH), &format!("batch_size = {batch}"))
}

fn parts(whole: &Batch) -> Vec<Batch> {
    (0..PARTS).map(|index| workload::part(whole, index, whole.size / PARTS)).collect()
}

/// Distinct ids of all features a sample, over batches.
fn distinct_share(batches: &[Batch]) -> f64 {
    let mut distinct = 0;
    for feature in batches.iter().flat_map(|batch| &batch.categorical) {
        let mut ids = feature.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        distinct += ids.len();
    }
    distinct as f64 / batches.iter().map(|batch| batch.size).sum::<usize>().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_all_ids_of_a_batch_and_more_distinct_ones_a_sample() {
        let whole = workload::make_batches(1);
        let parts = parts(&whole[0]);
        let ids: Vec<u64> = parts.iter().flat_map(|part| part.categorical[3].ids.clone()).collect();
        assert_eq!(ids, whole[0].categorical[3].ids);
        let (large, small) = (distinct_share(&whole), distinct_share(&parts));
        assert!(large < small && small <= 26.0, "{large} {small}");
    }
}
