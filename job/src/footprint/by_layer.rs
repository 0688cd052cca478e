//! The activations of a worker whose step is autograd's, a layer at a time (`layer_calls` of the dense worker).
//!
//! The forward keeps the output of each layer. The backward computes one layer again, with all that autograd keeps of it.

use super::{largest, outputs_of};
use crate::settings::{DenseLayout, Job, MlpNorm, TensorRole};

/// Copies of a layer's values while it is computed again: its outputs and their slopes, their product, and a function after the layer
/// with its slopes.
const OF_ONE: u64 = 5;

impl Job {
    /// Values that such a step has for a sample at its peak.
    pub(super) fn values_by_layer(&self, layout: &DenseLayout) -> u64 {
        let weights: Vec<_> = layout.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight).collect();
        let layers = || weights.chunk_by(|before, after| before.layer == after.layer);
        let kept: u64 = layers().filter_map(|layer| layer.last()).map(|last| outputs_of(last)).sum();
        let of_one = largest(layers().map(|layer| layer.iter().map(|tensor| outputs_of(tensor)).sum()));
        let inputs = largest(weights.iter().map(|tensor| tensor.inputs.size * tensor.uses));
        // A norm keeps what it reads. Dropout keeps its factors and its outputs.
        let norms = u64::from(self.mlp.norm != MlpNorm::None);
        let dropped = 2 * u64::from(self.model.dropout() > 0.0);
        (1 + norms + dropped) * kept + OF_ONE * of_one + 2 * inputs
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn outputs_are_kept_and_one_layer_is_made_again() {
        let of = |text: &str| {
            let job = job(CRITEO, &format!("[model]\nkind = 'ffnn'\nhidden = [64, 32]\ndropout = {text}\n"));
            job.values_by_layer(&job.dense_layout().unwrap())
        };
        assert_eq!(of("0.0"), (64 + 32 + 1) + 5 * 64 + 2 * 429);
        assert_eq!(of("0.5"), 3 * (64 + 32 + 1) + 5 * 64 + 2 * 429);
        assert_eq!(of("0.0\n[mlp]\nnorm = 'layer'"), 2 * (64 + 32 + 1) + 5 * 64 + 2 * 429);
    }
}
