//! The activations of a worker whose step is autograd's, a layer at a time (`layer_calls` of the dense worker).
//!
//! The forward keeps the output of each layer. The backward computes one layer again, with all that autograd keeps of it.

use super::{largest, outputs_of};
use crate::settings::{DenseLayout, DenseTensor, Job, MlpNorm, Model, TensorRole};

/// Copies of a layer's values while it is computed again: what its functions give, their slopes, and copies in another order.
const OF_ONE: u64 = 10;

impl Job {
    /// Values that such a step has for a sample at its peak.
    pub(super) fn values_by_layer(&self, layout: &DenseLayout) -> u64 {
        let weights: Vec<_> = layout.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight).collect();
        let calls = weights.chunk_by(|before, after| before.layer == after.layer).filter_map(|layer| layer.last());
        let given: Vec<u64> = calls.map(|last| outputs_of(last)).chain(self.values_of_interactions()).collect();
        // Of a product of two values, which is never there, a network reads the values.
        let is_read = |tensor: &&&DenseTensor| tensor.inputs.power < 2;
        let inputs = largest(weights.iter().filter(is_read).map(|tensor| tensor.inputs.size * tensor.uses));
        // A norm keeps what it reads. Dropout keeps its factors and its outputs.
        let norms = u64::from(self.mlp.norm != MlpNorm::None);
        let dropped = 2 * u64::from(self.model.dropout_share() > 0.0);
        let kept: u64 = given.iter().sum();
        (1 + norms + dropped) * kept + OF_ONE * largest(given.into_iter()) + 2 * inputs
    }

    pub(super) fn values_of_interactions(&self) -> Vec<u64> {
        let Model::Wukong { layers, fmb, lcb, rank, .. } = &self.model else { return Vec::new() };
        let (vectors, dim) = ((fmb + lcb) as u64, self.tables.first().map_or(0, |table| table.dim as u64));
        (0..*layers).flat_map(|_| [vectors * dim, vectors * *rank as u64]).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn outputs_are_kept_and_one_layer_is_made_again() {
        let values = |text: &str| {
            let job = job(CRITEO, &format!("[model]\nkind = 'ffnn'\nhidden = [64, 32]\ndropout = {text}\n"));
            job.values_by_layer(&job.dense_layout().unwrap())
        };
        assert_eq!(values("0.0"), (64 + 32 + 1) + 10 * 64 + 2 * 429);
        assert_eq!(values("0.5"), 3 * (64 + 32 + 1) + 10 * 64 + 2 * 429);
        assert_eq!(values("0.0\n[mlp]\nnorm = 'layer'"), 2 * (64 + 32 + 1) + 10 * 64 + 2 * 429);
    }
    #[test]
    fn a_wukong_keeps_its_vectors_and_their_products() {
        let values = |layers: u64| {
            let sizes = "fmb = 20\nlcb = 7\nrank = 16\nfmb_hidden = []\nbottom = []\ntop = []\n";
            let job = job(CRITEO, &format!("[model]\nkind = 'wukong'\nlayers = {layers}\n{sizes}"));
            job.values_by_layer(&job.dense_layout().unwrap())
        };
        // 27 vectors of 16 values; of the weights the projection, the layer of the FMB and the LCB.
        assert_eq!(values(3) - values(2), 27 * 16 + 27 * 16 + (16 * 16 + 20 * 16 + 7 * 16));
    }

    /// Each output of one stream is multiplied with each of the other, and the products are not kept.
    #[test]
    fn products_of_two_streams_are_not_there() {
        let values = |gate: &str| {
            let text =
                format!("[model]\nkind = 'finalmlp'\nfirst = [512]\nsecond = [512]\n{gate}[train]\nthreads = 1\n");
            let job = job(CRITEO, &format!("{text}weights = 'streamed'\nbatch_size = 256\n"));
            job.streamed_footprint().unwrap().activations
        };
        for gate in ["", "gate = {}\n"] {
            assert!(values(gate) < 4 * 256 * 20_000, "{}", values(gate));
        }
    }
}
