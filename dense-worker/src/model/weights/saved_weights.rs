//! The weights of a network as they are saved and taken.

use super::encoding as weights;
use crate::model::training::WeightAverage;
use crate::model::{DenseModel, ModelError};

impl DenseModel {
    /// The weights with which samples are scored, as [`Self::to_safetensors`]: the average of those of all steps, if there is one.
    pub fn scoring_safetensors(&self) -> Result<Vec<u8>, ModelError> {
        self.wait_for_pushes()?;
        self.weights.with_values(self.average.as_ref().map(WeightAverage::values), || weights::encode(&self.variables))
    }

    /// The weights in safetensors' format, under names such as `bottom.0.weight`, f32.
    ///
    /// Streamed weights are saved by their servers; here is nothing of them. All gradients have arrived there after this.
    ///
    /// # Errors
    /// When libtorch fails, or a gradient does not arrive.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, ModelError> {
        self.wait_for_pushes()?;
        self.weights.upload()?;
        weights::encode(&self.variables)
    }

    /// Takes weights that [`Self::to_safetensors`] wrote. The optimiser's state stays.
    ///
    /// # Errors
    /// When the bytes are damaged or the names or shapes are not exactly this network's: nothing is taken then.
    pub fn load_safetensors(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        weights::decode(bytes, &self.variables)?;
        self.weights_taken()
    }

    /// After the variables have taken other weights.
    pub(super) fn weights_taken(&mut self) -> Result<(), ModelError> {
        self.weights.download()?;
        if let Some(average) = &mut self.average {
            average.restart(self.weights.values());
        }
        Ok(())
    }
}
