//! The matrix products of a network, by the shapes of their weights.

use zagros_job::{DenseLayout, DenseTensor, Job, Model, TensorRole};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixProduct {
    /// Values that it reads.
    pub read: f64,
    /// Values that it gives.
    pub write: f64,
    /// How often a sample goes through it.
    pub times: f64,
}

impl MatrixProduct {
    fn new(tensor: &DenseTensor) -> Self {
        let read = tensor.inputs.size.max(1) as f64;
        Self { read, write: tensor.len() as f64 / read, times: tensor.uses as f64 }
    }

    #[must_use]
    pub fn weight_count(&self) -> f64 {
        self.read * self.write
    }

    /// Additions and multiplications of a sample, forward and backward: two for each weight forward, and four backward.
    #[must_use]
    pub fn flop(&self) -> f64 {
        6.0 * self.weight_count() * self.times
    }
}

/// The arithmetic of a dense network for one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseWork {
    /// In the order of the layers.
    pub products: Vec<MatrixProduct>,
    /// Multiplications of values with values, forward: dot products of vectors, attention, factorisation machines.
    pub pair_values: f64,
    /// Values that elementwise loops walk over beside those of the products.
    pub loop_values: f64,
    /// Whether the step goes through libtorch's autograd.
    pub by_autograd: bool,
    /// Weights and biases of the whole network.
    pub parameters: f64,
    /// Additions and multiplications of a sample, forward and backward.
    pub flop: f64,
}

impl DenseWork {
    /// The work of a job's network; `None` for a user's module.
    #[must_use]
    pub fn from_job(job: &Job) -> Option<Self> {
        let layout: DenseLayout = job.dense_layout()?;
        let weights = layout.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight);
        let width = job.features.numeric_values() as f64
            + job.features.categorical.iter().map(|feature| job.tables[feature.table].dim as f64).sum::<f64>();
        let own_loops = match &job.model {
            // x₀ ⊙ (W·x + b) + x: three walks over the width, forward.
            Model::Dcnv2 { cross_layers, .. } => 3.0 * width * *cross_layers as f64,
            _ => 0.0,
        };
        Some(Self {
            products: weights.map(MatrixProduct::new).collect(),
            pair_values: layout.products as f64,
            loop_values: own_loops,
            by_autograd: job.is_by_autograd(),
            parameters: layout.parameter_count() as f64,
            flop: layout.step_flop() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn work(network: &str) -> DenseWork {
        let text = format!(
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 4\n[train]\nthreads = 1\n[model]\n{network}\n"
        );
        DenseWork::from_job(&Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()).unwrap()
    }

    #[test]
    fn the_products_and_pairs_are_all_of_the_arithmetic() {
        let networks = [
            "kind = 'dlrm'\nbottom = [64]\ntop = [64]",
            "kind = 'ffnn'\nhidden = [64, 32]",
            "kind = 'dcnv2'\nhidden = [64]\nstructure = 'parallel'\nrank = 5",
            "kind = 'deepfm'\nhidden = [64]",
            "kind = 'wukong'\nlayers = 2\nfmb = 6\nlcb = 6\nrank = 8\nfmb_hidden = [64]\nbottom = [64]\ntop = [64]",
            "kind = 'finalmlp'\nfirst = [64, 8]\nsecond = [64, 8]\nheads = 8",
        ];
        for network in networks {
            let work = work(network);
            let products: f64 = work.products.iter().map(MatrixProduct::flop).sum();
            let flop = products + 6.0 * work.pair_values;
            assert!((flop / work.flop - 1.0).abs() < 1e-9, "{network}: {flop} of {}", work.flop);
            let weights: f64 = work.products.iter().map(MatrixProduct::weight_count).sum();
            assert!((0.8..1.0).contains(&(weights / work.parameters)), "{network}: {weights} of {}", work.parameters);
        }
    }

    #[test]
    fn a_layer_is_a_product_of_its_inputs_and_outputs() {
        let ffnn = work("kind = 'ffnn'\nhidden = [8]");
        // 13 numbers and 26 vectors of 4.
        let product = |read, write| MatrixProduct { read, write, times: 1.0 };
        assert_eq!(ffnn.products, [product(117.0, 8.0), product(8.0, 1.0)]);
        assert!(!ffnn.by_autograd && work("kind = 'wukong'").by_autograd);
        assert_eq!(ffnn.loop_values, 0.0);
        assert_eq!(work("kind = 'dcnv2'\ncross_layers = 2").loop_values, 6.0 * 117.0);
    }
}
