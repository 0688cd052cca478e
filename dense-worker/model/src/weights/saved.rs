//! Weights as they are saved, taken and sent.

use safetensors::SafeTensors;

use crate::{DenseModel, LabelledSamples, ModelError, ModelResult, StepCompute, StepOutput, expect};

impl DenseModel {
    /// The weights with which samples are scored, as [`Self::to_safetensors`]: the average of those of all steps, if there is one.
    pub fn scoring_safetensors(&self) -> ModelResult<Vec<u8>> {
        self.wait_for_pushes()?;
        self.encode(self.average.as_ref().map(|average| &average.values[..]))
    }

    /// The weights in safetensors' format, under names such as `bottom.0.weight`, f32, and a module's buffers.
    ///
    /// Streamed weights are saved by their servers; here is nothing of them. All gradients have arrived there after this.
    pub fn to_safetensors(&self) -> ModelResult<Vec<u8>> {
        self.wait_for_pushes()?;
        self.encode(None)
    }

    fn encode(&self, weights: Option<&[f32]>) -> ModelResult<Vec<u8>> {
        match &self.compute {
            StepCompute::Threads(_, held) => held.encode(weights),
            StepCompute::Autograd(network) => network.encode(weights),
        }
    }

    /// Takes weights that [`Self::to_safetensors`] wrote. The optimiser's state stays.
    ///
    /// # Errors
    /// When the bytes are damaged or the names or shapes are not exactly this network's: nothing is taken then.
    pub fn load_safetensors(&mut self, bytes: &[u8]) -> ModelResult {
        let (stored, forms) = (SafeTensors::deserialize(bytes)?, self.compute.tensor_forms()?);
        let is_unknown = |name: &&str| forms.iter().all(|form| form.name != *name);
        if let Some(name) = stored.names().into_iter().filter(is_unknown).min() {
            return Err(ModelError::Foreign { what: format!("{name} is not a tensor of this network") });
        }
        let saved = forms.iter().map(|form| form.find_values(&stored).map(Some)).collect::<Result<Vec<_>, _>>()?;
        self.compute.take_tensors(&saved)?;
        self.restart_average();
        Ok(())
    }

    /// After other weights are taken.
    pub(super) fn restart_average(&mut self) {
        if let Some(average) = &mut self.average {
            average.restart(self.compute.weights());
        }
    }

    pub fn copy_weights(&self, into: &mut [f32]) -> ModelResult {
        expect("dense weights", self.weight_count(), into.len())?;
        into.copy_from_slice(self.compute.weights());
        Ok(())
    }

    /// Takes these weights. The optimiser's state stays.
    ///
    /// # Errors
    /// When their length is not [`Self::weight_count`]: nothing is taken then.
    pub fn set_weights(&mut self, weights: &[f32]) -> ModelResult {
        expect("dense weights", self.weight_count(), weights.len())?;
        self.compute.weights_and_gradients().0.copy_from_slice(weights);
        Ok(())
    }

    /// A step without its update: forward, backward and clipping. The caller reads the gradients with
    /// [`Self::gradients`] and makes the update. Inputs as for [`Self::step`].
    pub fn gradients_of(&mut self, samples: LabelledSamples<'_>) -> ModelResult<StepOutput> {
        let output = self.backward_whole(samples)?;
        let finite = self.check_finite(&output);
        let clipped = finite.and_then(|()| self.updater.clip(self.compute.weights_and_gradients().1));
        clipped.map_err(|error| self.skipped(error))?;
        self.made()?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use zagros_fakes::jobs::small_job;

    #[test]
    fn weights_of_another_network_are_refused() {
        let mut model = DenseModel::new(&small_job(), Backend::default()).unwrap();
        let old_weights = model.compute.weights().to_vec();
        assert!(model.set_weights(&old_weights[1..]).is_err() && model.copy_weights(&mut [0.0; 2]).is_err());
        assert_eq!(model.compute.weights(), old_weights);
    }
}
