//! The dense gradients as workers share them: all of one network one after another, in the order that it made its
//! weights, which is the same on every worker.

use super::mlp::Dropout;
use super::{DenseModel, ModelError, expect};

impl DenseModel {
    /// Weights, and so values of [`Self::copy_gradients`].
    #[must_use]
    pub fn weights(&self) -> usize {
        self.gradients.values().len()
    }

    /// Makes every gradient zero, as that of no sample.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn clear_gradients(&mut self) -> Result<(), ModelError> {
        self.gradients.zero()
    }

    /// Copies the gradients of the last backward pass.
    ///
    /// # Errors
    /// When `into` has another length than [`Self::weights`].
    pub fn copy_gradients(&self, into: &mut [f32]) -> Result<(), ModelError> {
        expect("dense gradients", self.weights(), into.len())?;
        into.copy_from_slice(self.gradients.values());
        Ok(())
    }

    /// One optimiser step with these gradients instead of those of the last backward pass.
    ///
    /// # Errors
    /// When their length is not [`Self::weights`] or one is not finite (nothing is applied then), or libtorch fails.
    pub fn apply(&mut self, gradients: &[f32]) -> Result<(), ModelError> {
        expect("dense gradients", self.weights(), gradients.len())?;
        if !super::all_finite(gradients) {
            return Err(ModelError::NotFinite { what: "a gradient of the dense network, summed over all workers," });
        }
        self.gradients.values_mut().copy_from_slice(gradients);
        self.steps += 1;
        self.updater.apply(self.steps - 1, self.weights.values_mut(), self.gradients.values_mut())
    }

    /// From now on, dropout draws from this seed: the units that another worker drops are others.
    pub fn drop_by(&mut self, seed: u64) {
        let share = self.dropout.share();
        let dropout = |stream| Dropout::new(share, seed, stream);
        if let Some(team) = &mut self.team {
            team.drop_by(dropout);
        }
        self.dropout = dropout(0);
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{DenseOptimizer, Model};

    use super::*;
    use crate::testing::job;

    fn model() -> DenseModel {
        let mut job = job(1, &[2, 2], Model::Dlrm { bottom: vec![3], top: vec![4], dropout: 0.0 });
        job.dense_optimizer = DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 };
        DenseModel::new(&job).unwrap()
    }

    const BATCH: (&[f32], &[f32], &[f32]) = (&[0.5, -1.0], &[0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7, -0.8], &[0.0, 1.0]);

    #[test]
    fn gradients_that_go_through_a_buffer_make_the_same_step() {
        let (mut at_once, mut in_parts) = (model(), model());
        for _ in 0..3 {
            let whole = at_once.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
            assert_eq!(in_parts.backward(BATCH.0, BATCH.1, BATCH.2).unwrap(), whole);
            let mut gradients = vec![0.0; in_parts.weights()];
            in_parts.copy_gradients(&mut gradients).unwrap();
            in_parts.apply(&gradients).unwrap();
            assert_eq!(in_parts.to_safetensors().unwrap(), at_once.to_safetensors().unwrap());
        }
    }

    #[test]
    fn a_worker_without_samples_makes_the_others_step() {
        let (mut busy, mut idle) = (model(), model());
        busy.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
        let mut gradients = vec![1.0; busy.weights()];
        idle.clear_gradients().unwrap();
        idle.copy_gradients(&mut gradients).unwrap();
        assert!(gradients.iter().all(|gradient| *gradient == 0.0));
        let mut sum = vec![0.0; busy.weights()];
        busy.copy_gradients(&mut sum).unwrap();
        idle.apply(&sum).unwrap();
        assert_eq!(idle.to_safetensors().unwrap(), busy.to_safetensors().unwrap());
    }

    #[test]
    fn what_does_not_fit_or_is_no_number_changes_nothing() {
        let mut model = model();
        let before = model.to_safetensors().unwrap();
        model.clear_gradients().unwrap();
        let mut gradients = vec![0.0; model.weights()];
        assert!(model.apply(&gradients[1..]).is_err() && model.copy_gradients(&mut gradients[1..]).is_err());
        gradients[0] = f32::INFINITY;
        assert!(matches!(model.apply(&gradients), Err(ModelError::NotFinite { .. })));
        assert_eq!(model.to_safetensors().unwrap(), before);
    }
}
