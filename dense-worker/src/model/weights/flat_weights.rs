//! All weights one after another, in the order of the gradients ([`crate::model::training::shared`]), to be sent and received.

use crate::model::{DenseModel, LabelledSamples, ModelError, StepOutput, expect};

impl DenseModel {
    /// # Errors
    /// When `into` has another length than [`Self::weight_count`].
    pub fn copy_weights(&self, into: &mut [f32]) -> Result<(), ModelError> {
        expect("dense weights", self.weight_count(), into.len())?;
        into.copy_from_slice(self.weights.values());
        Ok(())
    }

    /// Takes these weights. The optimiser's state stays.
    ///
    /// # Errors
    /// When their length is not [`Self::weight_count`]: nothing is taken then.
    pub fn set_weights(&mut self, weights: &[f32]) -> Result<(), ModelError> {
        expect("dense weights", self.weight_count(), weights.len())?;
        self.weights.values_mut().copy_from_slice(weights);
        Ok(())
    }

    /// A step without its update: forward, backward and clipping. The caller reads the gradients with
    /// [`Self::gradients`] and makes the update. Inputs as for [`Self::step`].
    pub fn gradients_of(&mut self, samples: LabelledSamples<'_>) -> Result<StepOutput, ModelError> {
        let output = self.backward_whole(samples)?;
        let clipped = self.check_finite(&output).and_then(|()| self.updater.clip(self.gradients.values_mut()));
        clipped.map_err(|error| self.skipped(error))?;
        self.made()?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::Model;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::testing::job;

    const BATCH: (&[f32], &[f32], &[f32]) = (&[0.5, -1.0], &[0.1, 0.2, -0.3, 0.4, 0.5, 0.6, 0.7, -0.8], &[0.0, 1.0]);

    fn model(clip_norm: Option<f64>) -> DenseModel {
        let mut job = job(1, &[2, 2], Model::Dlrm { bottom: vec![3], top: vec![4], dropout: 0.0 });
        job.train.updates.clip_norm = clip_norm;
        DenseModel::new(&job).unwrap()
    }

    fn weights(model: &DenseModel) -> Vec<f32> {
        let mut weights = vec![0.0; model.weight_count()];
        model.copy_weights(&mut weights).unwrap();
        weights
    }

    /// One network's weights and gradients with an SGD step by hand, against the other network's weights after its own
    /// step.
    #[test]
    fn an_update_by_the_caller_equals_the_networks_own() {
        for clip_norm in [None, Some(0.05)] {
            let (mut local, mut remote) = (model(clip_norm), model(clip_norm));
            for _ in 0..3 {
                let expected = local.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
                assert_eq!(
                    remote.gradients_of(LabelledSamples::unweighted(BATCH.0, BATCH.1, BATCH.2)).unwrap(),
                    expected
                );
                let mut made = weights(&remote);
                made.iter_mut().zip_eq(remote.gradients()).for_each(|(weight, gradient)| *weight -= 0.1 * gradient);
                remote.set_weights(&made).unwrap();
                for (one, other) in weights(&local).iter().zip_eq(&made) {
                    assert!((one - other).abs() < 1e-6, "{one} local, {other} remote");
                }
                // Start from the same bits again, so that losses stay equal.
                remote.set_weights(&weights(&local)).unwrap();
            }
            let norm =
                |model: &DenseModel| model.gradients().iter().map(|gradient| gradient * gradient).sum::<f32>().sqrt();
            assert!(clip_norm.is_none_or(|limit| f64::from(norm(&remote)) < limit * 1.0001));
        }
    }

    #[test]
    fn weights_of_another_network_are_refused() {
        let mut model = model(None);
        let old_weights = weights(&model);
        assert!(model.set_weights(&old_weights[1..]).is_err() && model.copy_weights(&mut [0.0; 2]).is_err());
        assert_eq!(weights(&model), old_weights);
    }
}
