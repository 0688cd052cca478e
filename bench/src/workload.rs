//! The workload `crit-zipf`: its batches, and the job that every compared system runs on them.

use std::path::Path;

use zagros_ingest::Batch;
use zagros_ingest::synthetic::crit_zipf::{CritZipf, Vocabulary};
use zagros_job::{Job, Overrides};
use zagros_shell::{Exit, Failure};

/// Samples per step of this workload, in every compared system.
pub(super) const BATCH: usize = 4096;

/// The first `count` batches, read from a folder or made in memory.
pub(super) fn batches(folder: Option<&Path>, count: usize) -> Result<Vec<Batch>, Failure> {
    let workload = match folder {
        Some(folder) => CritZipf::load(folder).map_err(|error| Failure::from_error(Exit::Data, error))?,
        None => CritZipf::generate(Vocabulary::Small, count * BATCH),
    };
    let batches: Option<Vec<Batch>> =
        (0..count).map(|index| workload.batch(index * BATCH..(index + 1) * BATCH)).collect();
    batches.ok_or_else(|| {
        let held = workload.samples() / BATCH;
        let what = format!("the workload holds {held} batches of {BATCH}, fewer than the {count} wanted");
        Failure::with_help(Exit::Usage, what, "ask for fewer with --steps or --batches")
    })
}

/// The text of the job: 13 numbers, 26 tables, Adagrad 0.01 for the rows, Adam 0.001 for the dense network. `model`,
/// `train` and `cluster` are lines of these sections.
pub(super) fn job_text(dim: usize, model: &str, train: &str, cluster: &str) -> String {
    format!(
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
        {train}
        [cluster]
        {cluster}
        [output]
        save_model = false
        tensorboard = false
        "#
    )
}

/// Parses and checks the text.
pub(super) fn job(text: &str) -> Result<Job, Failure> {
    let job = Job::parse(text, "the benchmark's job".as_ref(), &Overrides::none());
    job.map_err(|errors| Failure::new(Exit::Usage, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_has_a_table_for_each_column_of_a_batch() {
        let job = job(&job_text(8, "kind = \"ffnn\"", "", "servers = 3")).unwrap();
        let tables: Vec<usize> = job.features.categorical.iter().map(|feature| feature.table).collect();
        assert_eq!(tables, Vec::from_iter(0..26));
        assert!(job.tables.iter().all(|table| table.dim == 8) && job.cluster.servers == 3);
        let batch = batches(None, 2).unwrap().remove(1);
        assert_eq!((batch.size, batch.categorical.len()), (BATCH, tables.len()));
    }
}
