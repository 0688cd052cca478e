//! The dense gradients as workers share them: all gradients of a network one after another, in the order in which it made
//! its weights. That order is the same on every worker.

use zagros_network::{OutputLoss, UnitDropout};

use crate::model::{DenseModel, DenseNetwork, LabelledSamples, ModelError, StepCompute, StreamedExchange};

/// Called during backward with a weight and the gradients from that weight on, which are final. The calls come at any time and
/// in any sizes. The other gradients are final when backward ends.
pub type FinalGradients<'a> = &'a mut dyn FnMut(usize, &[f32]);

impl DenseModel {
    #[must_use]
    pub fn weight_count(&self) -> usize {
        self.gradients.values().len()
    }

    /// Sets every gradient to zero, as without samples. Then the buffers do not change either. For streamed weights it takes the
    /// worker's part in the exchange of all layers.
    ///
    /// # Errors
    /// When libtorch fails, or another worker does not take part.
    pub fn clear_gradients(&mut self) -> Result<(), ModelError> {
        if self.exchange.is_some() {
            self.set_share(0.0);
            let sample =
                [self.shape.numeric, self.shape.width(), self.losses.target_count()].map(|values| vec![0.0; values]);
            let [numeric, embeddings, labels] = &sample;
            self.backward_of(LabelledSamples::unweighted(numeric, embeddings, labels), 1, &mut |_, _| ())?;
        }
        self.buffers.drop_step();
        self.gradients.set_to_zero()
    }

    /// The sum of the squares of the gradients that this worker pushed for a commit; 0 if its weights are not streamed.
    pub fn pushed_squares(&self) -> f64 {
        self.exchange.as_ref().map_or(0.0, |exchange| exchange.squares)
    }

    /// Replaces that sum by the one of all workers.
    pub fn replace_squares(&mut self, squares: f64) {
        if let Some(exchange) = &mut self.exchange {
            exchange.squares = squares;
        }
    }

    /// Sets the share that this worker's samples have in the steps from now on. Of resident weights the caller weighs the
    /// gradients.
    pub fn set_share(&mut self, share: f32) {
        if let Some(exchange) = &mut self.exchange {
            exchange.share = share;
        }
    }

    /// Of the last backward, in the order of the weights.
    #[must_use]
    pub fn gradients(&self) -> &[f32] {
        self.gradients.values()
    }

    /// Replaces the gradients from weight `from` on.
    ///
    /// # Errors
    /// When there are not so many weights.
    pub fn replace_gradients(&mut self, from: usize, by: &[f32]) -> Result<(), ModelError> {
        let weights = self.gradients.values().len();
        let place = self.gradients.values_mut().get_mut(from..from + by.len());
        place
            .ok_or(ModelError::Length { what: "dense gradients", expected: weights, found: from + by.len() })?
            .copy_from_slice(by);
        Ok(())
    }

    /// The number of values in the network's buffers ([`crate::model::layers::buffers`]). Most networks have none.
    #[must_use]
    pub fn buffer_values(&self) -> usize {
        self.buffers.value_count()
    }

    pub fn buffer_changes(&self) -> Result<Vec<f32>, ModelError> {
        self.buffers.changes()
    }

    pub fn replace_buffer_changes(&mut self, by: &[f32]) -> Result<(), ModelError> {
        crate::model::expect("changes of buffers", self.buffers.value_count(), by.len())?;
        self.buffers.replace_changes(by)
    }

    /// One optimiser step with the present gradients.
    ///
    /// # Errors
    /// When one is not finite (nothing is applied then; [`ModelError::Skipped`] if training goes on without the batch), or
    /// libtorch fails.
    pub fn apply_gradients(&mut self) -> Result<(), ModelError> {
        let what = "a gradient of the dense network, summed over all workers,";
        let finite = crate::model::all_finite(self.gradients.values());
        let made = if finite { self.update() } else { Err(ModelError::NotFinite { what }) };
        made.map_err(|error| self.skipped(error))
    }

    /// Waits until the gradients of all steps have arrived where the weights are. Resident weights have them.
    pub fn wait_for_pushes(&self) -> Result<(), ModelError> {
        self.exchange.as_ref().map_or(Ok(()), StreamedExchange::wait_for_pushes)
    }

    /// Seeds dropout from now on, so that another worker drops other units.
    pub fn drop_by(&mut self, seed: u64) {
        let share = self.dropout.share;
        let dropout = |stream| UnitDropout::new(share, seed, stream);
        match &mut self.compute {
            StepCompute::Threads(threads) => threads.get_mut().drop_by(dropout),
            StepCompute::Streamed(threads) => threads.get_mut().drop_by(dropout),
            StepCompute::Autograd | StepCompute::StreamedAutograd(_) => {}
        }
        self.dropout = dropout(0);
        if let Some(regularisation) = &mut self.regularisation {
            regularisation.drop_by(seed);
        }
        if let DenseNetwork::TorchScript(module) = &mut self.network {
            module.drop_by(seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::small_job;

    #[test]
    fn a_wrong_length_or_a_value_that_is_not_finite_changes_nothing() {
        let mut model = DenseModel::new(&small_job()).unwrap();
        let saved = model.to_safetensors().unwrap();
        model.clear_gradients().unwrap();
        let weights = model.weight_count();
        let refused = model.replace_gradients(weights - 1, &[0.0; 2]).unwrap_err();
        assert!(matches!(refused, ModelError::Length { .. }), "{refused}");
        model.replace_gradients(weights - 1, &[f32::INFINITY]).unwrap();
        assert!(matches!(model.apply_gradients(), Err(ModelError::NotFinite { .. })));
        assert_eq!(model.to_safetensors().unwrap(), saved);
    }
}
