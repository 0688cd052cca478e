//! The state of a network besides its weights, with which it continues as if it had not been interrupted.

use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::training::{LossScale, SlotState};
use crate::{DenseModel, ModelError, ModelResult, expect};

/// An entry in the file's metadata: steps made, updates applied and, for products in f16, the loss scale.
const COUNTS: &str = "steps_applied";
/// Every vector of any optimiser's state.
const VECTORS: [&str; 4] = ["first_moment", "second_moment", "squares", "velocity"];
/// The average of the weights, if the network has one.
const AVERAGE: &str = "average";

impl DenseModel {
    /// The optimiser's state and the count of steps in safetensors' format: vectors of f32, with a value for each weight.
    /// Dropout is a function of seed and step, so it has no state.
    pub fn optimizer_state(&self) -> ModelResult<Vec<u8>> {
        let SlotState { applied, vectors } = &self.updater.state;
        let average = self.average.as_ref().map(|average| (AVERAGE, &average.values[..]));
        let vectors = vectors.iter().map(|(name, values)| (*name, &values[..])).chain(average);
        // Read where they are: the file is the only copy. Of other byte orders there is no libtorch.
        let views = vectors.map(|(name, values)| {
            TensorView::new(Dtype::F32, vec![values.len()], bytemuck::cast_slice(values)).map(|view| (name, view))
        });
        let views = views.collect::<Result<Vec<_>, _>>()?;
        // One entry, because several entries have no fixed order.
        let scale = self.loss_scale.map_or(String::new(), |scale| format!(" {}", scale.write()));
        let counts = HashMap::from([(COUNTS.to_owned(), format!("{} {applied}{scale}", self.steps))]);
        Ok(safetensors::serialize(views, Some(counts))?)
    }

    /// As [`Self::restore_optimizer`], but the steps count from 0 again: a schedule begins anew, and moments go on.
    pub fn restore_optimizer_at_step_0(&mut self, bytes: &[u8]) -> ModelResult {
        self.restore_optimizer(bytes)?;
        self.steps = 0;
        Ok(())
    }

    /// Takes the state that [`Self::optimizer_state`] wrote. Call it after the weights are taken.
    ///
    /// # Errors
    /// When the bytes are damaged, or belong to another optimiser or network: nothing is taken then.
    pub fn restore_optimizer(&mut self, bytes: &[u8]) -> ModelResult {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let foreign = |what: String| ModelError::Foreign { what };
        let counts = metadata.metadata().as_ref().and_then(|metadata| parse_counts(metadata.get(COUNTS)?));
        let (steps, applied, scale) =
            counts.ok_or_else(|| foreign(format!("the optimiser's state has no {COUNTS}")))?;
        let mut vectors = BTreeMap::new();
        for (found, view) in SafeTensors::deserialize(bytes)?.tensors() {
            let name = VECTORS.into_iter().chain([AVERAGE]).find(|name| *name == found);
            let name = name.ok_or_else(|| foreign(format!("{found} is not a vector of any optimiser's state")))?;
            let words = view.data().as_chunks::<4>().0;
            vectors.insert(name, words.iter().map(|word| f32::from_le_bytes(*word)).collect());
        }
        let average: Option<Vec<f32>> = vectors.remove(AVERAGE);
        if let Some(average) = &average {
            expect("values of the average", self.weight_count(), average.len())?;
        }
        self.updater.restore(SlotState { applied, vectors })?;
        if let (Some(own), Some(average)) = (&mut self.average, average) {
            own.restart(&average);
        }
        self.steps = steps;
        // The scale of a run in another precision is of no use.
        self.loss_scale = self.loss_scale.map(|own| scale.unwrap_or(own));
        Ok(())
    }
}

fn parse_counts(text: &str) -> Option<(u64, u64, Option<LossScale>)> {
    let mut words = text.splitn(3, ' ');
    let mut count = || words.next()?.parse().ok();
    let (steps, applied) = (count()?, count()?);
    Some((steps, applied, words.next().and_then(LossScale::read)))
}

#[cfg(test)]
mod tests {
    use zagros_job::{DenseOptimizer, Job, Model};

    use super::*;
    use crate::Backend;
    use zagros_fakes::jobs::{BATCH, assert_refused, ffnn, job};

    fn job_with(optimizer: DenseOptimizer, model: Model) -> Job {
        let mut job = job(1, &[2, 2], model);
        (job.dense_optimizer, job.train.threads) = (optimizer, 1);
        job
    }

    fn step(model: &mut DenseModel) {
        model.step(BATCH.0, BATCH.1, BATCH.2).unwrap();
    }

    /// Invariant CK-2: with dropout, without autograd and with it.
    #[test]
    fn a_restored_network_makes_the_steps_that_the_first_would_have_made() {
        let dlrm = Model::Dlrm { bottom: vec![3], top: vec![8], dropout: 0.5 };
        let deepfm = Model::DeepFm { hidden: vec![8], dropout: 0.5 };
        for (optimizer, model) in [
            (DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 }, dlrm.clone()),
            (DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 }, dlrm),
            (DenseOptimizer::Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.0 }, deepfm),
        ] {
            let job = job_with(optimizer, model);
            let mut whole = DenseModel::new(&job, Backend::default()).unwrap();
            (0..3).for_each(|_| step(&mut whole));
            let (weights, state) = (whole.to_safetensors().unwrap(), whole.optimizer_state().unwrap());
            let mut restored = DenseModel::new(&job, Backend::default()).unwrap();
            step(&mut restored);
            restored.load_safetensors(&weights).unwrap();
            restored.restore_optimizer(&state).unwrap();
            (0..3).for_each(|_| {
                step(&mut whole);
                step(&mut restored);
            });
            assert_eq!(restored.to_safetensors().unwrap(), whole.to_safetensors().unwrap(), "{:?}", job.model);
            assert_eq!(restored.optimizer_state().unwrap(), whole.optimizer_state().unwrap());
        }
    }

    #[test]
    fn the_state_of_another_network_is_refused() {
        let model = |optimizer| DenseModel::new(&job_with(optimizer, ffnn(&[3])), Backend::default()).unwrap();
        let mut adam = model(DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 });
        let sgd = model(DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 });
        let refused = adam.restore_optimizer(&sgd.optimizer_state().unwrap());
        assert_refused(refused, &["the optimiser's state is nothing, not first_moment"]);
        assert_refused(adam.restore_optimizer(&adam.to_safetensors().unwrap()), &["has no steps_applied"]);
        assert!(adam.restore_optimizer(b"damaged").is_err());
    }
}
