//! Logits of a batch in which the values of one feature are exchanged between samples, for the importance of features.
//!
//! What is exchanged is the feature's part of the network's input: its numbers, or the vector of its value or bag. Nothing is read
//! or looked up again.

use std::ops::Range;

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use zagros_embedding_client::BatchRows;

use super::dense::DenseStage;
use super::prepared::PreparedBatch;
use zagros_model::ModelError;

/// A feature by its place in the job: numeric ones first, then categorical ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeatureIndex(pub(crate) usize);

/// Which order of the samples: the same for the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermutationSeed {
    pub(crate) seed: u64,
    pub(crate) batch: u64,
    pub(crate) repeat: u32,
}

impl PermutationSeed {
    /// Which sample each sample has the feature's value of.
    fn order(self, FeatureIndex(feature): FeatureIndex, samples: usize) -> Vec<u32> {
        let state = u128::from(self.seed) << 64 | u128::from(self.batch);
        let mut random = Pcg64::new(state, (feature as u128) << 32 | u128::from(self.repeat));
        let mut order: Vec<u32> = (0..samples as u32).collect();
        order.shuffle(&mut random);
        order
    }
}

impl DenseStage {
    /// Logits of a batch whose feature has the values of other samples. Changes nothing.
    pub(crate) fn predict_permuted(
        &mut self,
        prepared: &PreparedBatch,
        rows: &BatchRows,
        feature: FeatureIndex,
        seed: PermutationSeed,
    ) -> Result<Vec<f32>, ModelError> {
        let (size, columns) = (prepared.batch.size, self.model.input_shape().numeric);
        let order = seed.order(feature, size);
        self.gather(prepared, rows);
        if let Some(inputs) = self.columns.numeric.get(feature.0) {
            let mut numeric = prepared.batch.numeric.clone();
            permute(&mut numeric, columns, inputs, &order);
            return self.model.predict(&numeric, &self.input, size);
        }
        let column = &self.columns.features[feature.0 - self.columns.numeric.len()];
        permute(&mut self.input, self.columns.width, &(column.offset..column.offset + column.width()), &order);
        self.model.predict(&prepared.batch.numeric, &self.input, size)
    }
}

/// Gives each row of `width` values these columns of the row that `order` names.
fn permute(matrix: &mut [f32], width: usize, columns: &Range<usize>, order: &[u32]) {
    let (length, part) = (columns.len(), |row: usize| row * width + columns.start..row * width + columns.end);
    let original: Vec<f32> = (0..order.len()).flat_map(|row| matrix[part(row)].to_vec()).collect();
    for (row, from) in order.iter().enumerate() {
        let from = *from as usize * length;
        matrix[part(row)].copy_from_slice(&original[from..from + length]);
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::datapath::prepared::BatchPreparer;
    use crate::testing::{batch, ffnn, job, metrics};

    #[test]
    fn orders_are_those_of_their_seed() {
        let seed = PermutationSeed { seed: 1, batch: 0, repeat: 0 };
        let order = |seed: PermutationSeed, feature| seed.order(FeatureIndex(feature), 100);
        let first = order(seed, 0);
        assert_eq!(order(seed, 0), first);
        let others = [
            PermutationSeed { repeat: 1, ..seed },
            PermutationSeed { batch: 1, ..seed },
            PermutationSeed { seed: 2, ..seed },
        ];
        assert!(others.iter().all(|other| order(*other, 0) != first) && order(seed, 1) != first);
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
    }

    /// The logits are those of a batch that was read with the values in the other order.
    #[test]
    fn permuted_logits_are_those_of_permuted_rows() {
        const SAMPLES: u64 = 40;
        let job = job(1, &[2, 3], ffnn(&[16]));
        let mut dense = DenseStage::new(&job, zagros_torch::backend(), metrics()).unwrap();
        let ids: [Vec<u64>; 2] = [(0..SAMPLES).collect(), (100..100 + SAMPLES).collect()];
        let mut plain = batch(SAMPLES as usize, &[&ids[0], &ids[1]]);
        plain.numeric = (0..SAMPLES).map(|sample| sample as f32 / 10.0).collect();
        // The row of an id is made of the id, wherever it comes in the batch.
        let row = |id: &u64, dim: usize| (0..dim).map(|at| (*id as f32 + at as f32).sin()).collect::<Vec<_>>();
        let logits =
            |dense: &mut DenseStage, batch: zagros_ingest::Batch, permuted: Option<(FeatureIndex, PermutationSeed)>| {
                let prepared = BatchPreparer::new(&job, Access::Read).prepare(batch).unwrap();
                let tables = prepared.unique.tables.iter();
                let tables =
                    tables.map(|table| table.ids.iter().flat_map(|id| row(id, table.dim as usize)).collect()).collect();
                let rows = BatchRows { tables };
                match permuted {
                    None => dense.predict(&prepared, &rows),
                    Some((feature, seed)) => dense.predict_permuted(&prepared, &rows, feature, seed),
                }
                .unwrap()
            };
        let seed = PermutationSeed { seed: 3, batch: 1, repeat: 2 };
        for feature in 0..3 {
            let order = seed.order(FeatureIndex(feature), SAMPLES as usize);
            let mut moved = plain.clone();
            for (to, from) in order.iter().enumerate() {
                match feature {
                    0 => moved.numeric[to] = plain.numeric[*from as usize],
                    _ => moved.categorical[feature - 1].ids[to] = plain.categorical[feature - 1].ids[*from as usize],
                }
            }
            let expected = logits(&mut dense, moved, None);
            assert_ne!(expected, logits(&mut dense, plain.clone(), None));
            assert_eq!(logits(&mut dense, plain.clone(), Some((FeatureIndex(feature), seed))), expected, "{feature}");
        }
    }
}
