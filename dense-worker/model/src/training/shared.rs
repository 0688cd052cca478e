//! The dense gradients as workers share them: all gradients of a network one after another, in the order in which it made
//! its weights. That order is the same on every worker.

use zagros_network::UnitDropout;

use crate::{DenseModel, LabelledSamples, ModelError, ModelResult, NetworkBuffers, StepCompute};

/// Called during backward with a weight and the gradients from that weight on, which are final. The calls come at any time and
/// in any sizes. The other gradients are final when backward ends.
pub type FinalGradients<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// The seed of a rank. The seed of rank 0, and of a single worker, is the job's.
pub fn seed_of_rank(seed: u64, rank: u64) -> u64 {
    // An odd constant, so that neighbouring ranks of neighbouring seeds differ in many bits.
    seed ^ rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl DenseModel {
    pub fn weight_count(&self) -> usize {
        self.compute.gradients().len()
    }

    /// Sets every gradient to zero, as without samples. Then the buffers do not change either. For streamed weights it takes the
    /// worker's part in the exchange of all layers.
    ///
    /// # Errors
    /// When libtorch fails, or another worker does not take part.
    pub fn clear_gradients(&mut self) -> ModelResult {
        if self.exchange.is_some() {
            self.set_share(0.0);
            let [numeric, embeddings, labels] = &self.zero_sample();
            self.backward_of(LabelledSamples::unweighted(numeric, embeddings, labels), 1, &mut |_, _| ())?;
        }
        self.drop_buffers();
        match &mut self.compute {
            StepCompute::Threads(_, held) => held.gradients.fill(0.0),
            StepCompute::Autograd(network) => network.clear_gradients()?,
        }
        Ok(())
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
    pub fn gradients(&self) -> &[f32] {
        self.compute.gradients()
    }

    /// Replaces the gradients from weight `from` on.
    pub fn replace_gradients(&mut self, from: usize, by: &[f32]) -> ModelResult {
        let weights = self.weight_count();
        let place = self.compute.weights_and_gradients().1.get_mut(from..from + by.len());
        place
            .ok_or(ModelError::Length { what: "dense gradients", expected: weights, found: from + by.len() })?
            .copy_from_slice(by);
        Ok(())
    }

    /// The number of values in the network's buffers ([`NetworkBuffers`]). Most networks have none.
    pub fn buffer_values(&self) -> usize {
        self.compute.buffers().map_or(0, NetworkBuffers::value_count)
    }

    /// The change of each of these values by the last backward; zeros if there was none.
    ///
    /// # Errors
    /// When a change is not finite, which cannot be added to others.
    pub fn buffer_changes(&self) -> ModelResult<Vec<f32>> {
        self.compute.buffers().map_or(Ok(Vec::new()), NetworkBuffers::changes)
    }

    pub fn replace_buffer_changes(&mut self, by: &[f32]) -> ModelResult {
        crate::expect("changes of buffers", self.buffer_values(), by.len())?;
        self.compute.buffers_mut().map_or(Ok(()), |buffers| buffers.replace_changes(by))
    }

    /// One optimiser step with the present gradients.
    ///
    /// # Errors
    /// When one is not finite (nothing is applied then; [`ModelError::Skipped`] if training goes on without the batch), or
    /// libtorch fails.
    pub fn apply_gradients(&mut self) -> ModelResult {
        let what = "a gradient of the dense network, summed over all workers,";
        let finite = crate::all_finite(self.compute.gradients());
        let made = if finite { self.update() } else { Err(ModelError::NotFinite { what }) };
        made.map_err(|error| self.skipped(error))
    }

    /// Waits until the gradients of all steps have arrived where the weights are. Resident weights have them.
    pub fn wait_for_pushes(&self) -> ModelResult {
        self.exchange.as_ref().map_or(Ok(()), |exchange| exchange.window.store.wait_for_pushes())
    }

    /// Seeds dropout from now on, so that another worker drops other units.
    pub fn drop_by(&mut self, seed: u64) {
        let dropout = |stream| UnitDropout::new(self.dropout, seed, stream);
        match &mut self.compute {
            StepCompute::Threads(threads, _) => threads.get_mut().drop_by(dropout),
            StepCompute::Autograd(network) => network.drop_by(seed),
        }
        if let Some(regularisation) = &mut self.regularisation {
            regularisation.drop_by(seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use zagros_fakes::jobs::small_job;

    #[test]
    fn a_wrong_length_or_a_value_that_is_not_finite_changes_nothing() {
        let mut model = DenseModel::new(&small_job(), Backend::default()).unwrap();
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
