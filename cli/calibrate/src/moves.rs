//! Rows into the network's input and gradients out of it, by the kernels of the dense thread.

use std::collections::HashMap;

use zagros_dense_worker::datapath::kernels::{InputColumns, RowPositions, gather, scatter_add};
use zagros_ingest::Batch;
use zagros_plumbing::process::cpu_time;
use zagros_shell::Failure;
use zagros_zip::ZipEq;

use crate::workload;

struct FeatureRows {
    /// The row of each sample.
    inverse: Vec<u32>,
    rows: Vec<f32>,
}

/// ns of CPU for each id of `dim` values: gather, and scatter with its cleared rows.
pub(crate) fn ns_per_id(batches: &[Batch], dim: usize) -> Result<f64, Failure> {
    let job = workload::parse_job(&workload::job_text(dim, "kind = \"ffnn\"\nhidden = []", "threads = 1", ""))?;
    let columns = InputColumns::new(&job);
    let mut input = vec![0.0; workload::BATCH * columns.width];
    let (mut spent, mut ids) = (0.0, 0);
    for batch in batches {
        let mut features: Vec<FeatureRows> =
            batch.categorical.iter().map(|ids| FeatureRows::new(&ids.ids, dim)).collect();
        let start = cpu_time();
        for (column, feature) in columns.features.iter().zip_eq(&features) {
            gather(column, columns.width, RowPositions::One(&feature.inverse), &feature.rows, &mut input);
        }
        for (column, feature) in columns.features.iter().zip_eq(&mut features) {
            feature.rows.fill(0.0);
            scatter_add(column, columns.width, RowPositions::One(&feature.inverse), &input, &mut feature.rows);
        }
        spent += (cpu_time() - start).as_secs_f64();
        ids += features.len() * batch.size;
    }
    Ok(spent * 1e9 / ids.max(1) as f64)
}

impl FeatureRows {
    fn new(ids: &[u64], dim: usize) -> Self {
        let mut places = HashMap::new();
        let mut place = |id: &u64| {
            let next = places.len() as u32;
            *places.entry(*id).or_insert(next)
        };
        let inverse: Vec<u32> = ids.iter().map(&mut place).collect();
        Self { inverse, rows: vec![0.5; places.len() * dim] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_rows_take_longer_to_move() {
        let batches = workload::load_batches(None, 2).unwrap();
        let repeated = [batches.clone(), batches].concat();
        let (narrow, wide) = (ns_per_id(&repeated, 4).unwrap(), ns_per_id(&repeated, 128).unwrap());
        assert!(narrow > 0.0 && wide > narrow, "{narrow} {wide}");
        assert_eq!(FeatureRows::new(&[5, 7, 5], 2).inverse, [0, 1, 0]);
    }
}
