//! The matrix products of a network, by the shapes of their weights.

use zagros_job::{Attention, Categorical, ExpertLayers, Job, Mlp, Model, Structure};

/// A product with a matrix of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Values that it reads.
    pub read: f64,
    /// Values that it gives.
    pub write: f64,
    /// How often a sample goes through it.
    pub times: f64,
}

impl Product {
    /// Weights and biases.
    #[must_use]
    pub fn weights(&self) -> f64 {
        (self.read + 1.0) * self.write
    }

    /// Additions and multiplications of a sample, forward and backward: two for each weight forward, and four backward.
    #[must_use]
    pub fn flop(&self) -> f64 {
        6.0 * self.read * self.write * self.times
    }
}

/// The arithmetic of a dense network for one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseWork {
    /// In the order of the layers.
    pub products: Vec<Product>,
    /// Multiplications of values with values, forward: dot products of vectors, attention, factorisation machines.
    pub pair_values: f64,
    /// Values that elementwise loops walk over beside those of the products.
    pub loop_values: f64,
    /// Whether the step goes through libtorch's autograd.
    pub by_autograd: bool,
    /// Weights and biases of the whole network.
    pub parameters: f64,
}

impl DenseWork {
    /// The work of a job's network; `None` for a user's module.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        let parameters = job.dense_parameters()? as f64;
        let input = NetworkInput::of(job);
        let mut work = input.work(&job.model)?;
        work.parameters = parameters;
        work.by_autograd |= job.mlp != Mlp::default() || job.features.numeric_embedding.is_some();
        Some(work)
    }

    /// Additions and multiplications of a sample, forward and backward.
    #[must_use]
    pub fn flop(&self) -> f64 {
        self.products.iter().map(Product::flop).sum::<f64>() + 6.0 * self.pair_values
    }

    /// Values that the products read and give.
    #[must_use]
    pub fn values(&self) -> f64 {
        self.products.iter().map(|product| (product.read + product.write) * product.times).sum::<f64>()
            + self.loop_values
    }

    fn mlp(&mut self, read: f64, hidden: &[i64], write: f64) {
        self.repeated_mlp(read, hidden, write, 1.0);
    }

    fn repeated_mlp(&mut self, read: f64, hidden: &[i64], write: f64, times: f64) {
        let mut from = read;
        for to in hidden.iter().map(|width| width.unsigned_abs() as f64).chain([write]) {
            self.products.push(Product { read: from, write: to, times });
            from = to;
        }
    }

    /// An MLP whose last hidden layer is its output. Answers the output's width.
    fn expert(&mut self, read: f64, hidden: &[i64]) -> f64 {
        match hidden.split_last() {
            Some((last, below)) => {
                let last = last.unsigned_abs() as f64;
                self.mlp(read, below, last);
                last
            }
            None => read,
        }
    }
}

/// What a network reads.
struct NetworkInput {
    numeric: f64,
    /// Of the features that are no sequences.
    dims: Vec<f64>,
    /// Values of each sequence's vectors, and its positions.
    sequences: Vec<(f64, f64)>,
    /// Outputs of each label.
    outputs: Vec<f64>,
}

impl NetworkInput {
    fn of(job: &Job) -> Self {
        let dim = |feature: &Categorical| job.tables[feature.table].dim as f64;
        let vectors = job.features.categorical.iter().filter(|feature| feature.values.sequence().is_none());
        let pair = |pair: &Attention| {
            let feature = job.features.categorical.iter().find(|feature| feature.name == pair.sequence)?;
            Some((dim(feature), feature.values.sequence()?.length as f64))
        };
        Self {
            numeric: job.features.numeric_values() as f64,
            dims: vectors.map(dim).collect(),
            sequences: job.model.attention().iter().filter_map(pair).collect(),
            outputs: job.features.targets.iter().map(|target| target.outputs() as f64).collect(),
        }
    }

    fn work(&self, model: &Model) -> Option<DenseWork> {
        let mut work = DenseWork::default();
        let (all, width) = (self.outputs.iter().sum::<f64>(), self.numeric + self.dims.iter().sum::<f64>());
        match model {
            Model::Dlrm { bottom, top, .. } => self.dlrm(&mut work, bottom, top, all),
            Model::Ffnn { hidden, .. } => work.mlp(width, hidden, all),
            Model::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                for _ in 0..*cross_layers {
                    match rank {
                        None => work.mlp(width, &[], width),
                        Some(rank) => work.mlp(width, &[*rank as i64], width),
                    }
                    work.loop_values += 3.0 * width;
                }
                match (structure, hidden.split_last()) {
                    (Structure::Parallel, Some((last, below))) => {
                        let last = last.unsigned_abs() as f64;
                        work.mlp(width, below, last);
                        work.mlp(width + last, &[], all);
                    }
                    _ => work.mlp(width, hidden, all),
                }
            }
            Model::DeepFm { hidden, .. } => {
                let factors = self.dims.iter().fold(0.0, |most: f64, dim| most.max(dim - 1.0));
                let vectors = self.numeric + self.dims.len() as f64;
                work.mlp(vectors * factors, hidden, 1.0);
                work.pair_values += vectors * factors;
                work.loop_values += 2.0 * vectors * factors;
            }
            Model::WideDeep { hidden, .. } => {
                work.mlp(self.numeric + self.dims.iter().map(|dim| dim - 1.0).sum::<f64>(), hidden, 1.0);
            }
            Model::Wukong { .. } => self.wukong(&mut work, model, all),
            Model::FinalMlp { first, second, heads, .. } => {
                let (a, b) = (work.expert(width, first), work.expert(width, second));
                work.pair_values += all * a * b / *heads as f64;
            }
            Model::SharedBottom { bottom, tower, .. } => {
                let read = work.expert(width, bottom);
                self.towers(&mut work, read, tower);
            }
            Model::Mmoe { .. } | Model::Ple { .. } => self.experts(&mut work, model, width),
            Model::Din { attention_hidden, hidden, .. } => {
                for (dim, length) in &self.sequences {
                    work.repeated_mlp(4.0 * dim, attention_hidden, 1.0, *length);
                    work.loop_values += 6.0 * dim * length;
                }
                work.mlp(width + self.sequences.iter().map(|(dim, _)| dim).sum::<f64>(), hidden, all);
                work.by_autograd = true;
            }
            Model::Bst { layers, ffn, hidden, .. } => {
                for (dim, length) in &self.sequences {
                    let positions = length + 1.0;
                    for _ in 0..*layers {
                        work.products.extend([Product { read: *dim, write: *dim, times: positions }; 4]);
                        work.repeated_mlp(*dim, &[*ffn as i64], *dim, positions);
                        work.pair_values += 2.0 * positions * positions * dim;
                        work.loop_values += 6.0 * positions * dim;
                    }
                }
                let read = self.sequences.iter().map(|(dim, length)| dim * (length + 1.0)).sum::<f64>();
                work.mlp(width + read, hidden, all);
                work.by_autograd = true;
            }
            Model::TorchScript { .. } => return None,
        }
        Some(work)
    }

    fn dlrm(&self, work: &mut DenseWork, bottom: &[i64], top: &[i64], all: f64) {
        let dim = self.dims.first().copied().unwrap_or(0.0);
        let mut vectors = self.dims.len() as f64;
        let mut width = 0.0;
        if self.numeric > 0.0 {
            work.mlp(self.numeric, bottom, dim);
            vectors += 1.0;
            width = dim;
        }
        let pairs = vectors * (vectors - 1.0).max(0.0) / 2.0;
        // The products are made with whole matrices: each pair twice.
        work.pair_values += vectors * vectors * dim;
        work.mlp(width + pairs, top, all);
    }

    fn wukong(&self, work: &mut DenseWork, model: &Model, all: f64) {
        let Model::Wukong { layers, fmb, lcb, rank, fmb_hidden, bottom, top, .. } = model else { return };
        let dim = self.dims.first().copied().unwrap_or(0.0);
        if self.numeric > 0.0 {
            work.mlp(self.numeric, bottom, dim);
        }
        let mut vectors = self.dims.len() as f64 + f64::from(u8::from(self.numeric > 0.0));
        let (fmb, lcb, rank) = (*fmb as f64, *lcb as f64, *rank as f64);
        for _ in 0..*layers {
            // Xᵀ·Y and X·(Xᵀ·Y), the compression, and the residual.
            work.products.push(Product { read: vectors, write: rank + lcb, times: dim });
            if vectors != fmb + lcb {
                work.products.push(Product { read: vectors, write: fmb + lcb, times: dim });
            }
            work.pair_values += vectors * dim * rank;
            work.mlp(vectors * rank, fmb_hidden, fmb * dim);
            work.loop_values += 4.0 * (fmb + lcb) * dim;
            vectors = fmb + lcb;
        }
        work.mlp(vectors * dim, top, all);
        work.by_autograd = true;
    }

    fn experts(&self, work: &mut DenseWork, model: &Model, width: f64) {
        let targets = self.outputs.len() as f64;
        match model {
            Model::Mmoe { experts, layers: ExpertLayers { hidden, tower, .. } } => {
                let read = (0..*experts).map(|_| work.expert(width, hidden)).last().unwrap_or(width);
                (0..self.outputs.len()).for_each(|_| work.mlp(width, &[], *experts as f64));
                work.loop_values += targets * *experts as f64 * read;
                self.towers(work, read, tower);
            }
            Model::Ple { levels, shared_experts, task_experts, layers: ExpertLayers { hidden, tower, .. } } => {
                let (shared, own) = (*shared_experts as f64, *task_experts as f64);
                let everyone = targets * own + shared;
                let mut read = width;
                for level in 0..*levels {
                    let from = read;
                    (0..everyone as usize).for_each(|_| read = work.expert(from, hidden));
                    (0..self.outputs.len()).for_each(|_| work.mlp(from, &[], own + shared));
                    if level + 1 < *levels {
                        work.mlp(from, &[], everyone);
                    }
                    work.loop_values += (targets * (own + shared) + everyone) * read;
                }
                self.towers(work, read, tower);
            }
            _ => {}
        }
    }

    fn towers(&self, work: &mut DenseWork, read: f64, tower: &[i64]) {
        self.outputs.iter().for_each(|outputs| work.mlp(read, tower, *outputs));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn work(network: &str, features: &str) -> DenseWork {
        let text = format!(
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 4\n[train]\nthreads = 1\n{features}\n[model]\n{network}\n"
        );
        DenseWork::of(&Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()).unwrap()
    }

    const SEQUENCES: &str = "[features]\ncategorical = ['C1', 'C2', { column = 'C3', table = 'C2', separator = '|', sequence = { length = 3 } }]";
    const LABELS: &str =
        "[features]\nlabel = ['label', { column = 'label', name = 'level', kind = 'classes', classes = ['0', '1'] }]";

    #[test]
    fn the_products_hold_nearly_all_weights_of_every_network() {
        let networks = [
            ("kind = 'dlrm'\nbottom = [64]\ntop = [64]", ""),
            ("kind = 'ffnn'\nhidden = [64, 32]", ""),
            ("kind = 'dcnv2'\nhidden = [64]", ""),
            ("kind = 'dcnv2'\nhidden = [64]\nstructure = 'parallel'\nrank = 5", ""),
            ("kind = 'deepfm'\nhidden = [64]", ""),
            ("kind = 'wide_deep'\nhidden = [64]", ""),
            (
                "kind = 'wukong'\nlayers = 2\nfmb = 6\nlcb = 6\nrank = 8\nfmb_hidden = [64]\nbottom = [64]\ntop = [64]",
                "",
            ),
            ("kind = 'finalmlp'\nfirst = [64, 8]\nsecond = [64, 8]\nheads = 8", ""),
            ("kind = 'shared_bottom'\nbottom = [64, 32]\ntower = [16]", LABELS),
            ("kind = 'mmoe'\nexperts = 3\nhidden = [64, 32]\ntower = [16]", LABELS),
            ("kind = 'ple'\nlevels = 2\nshared_experts = 1\ntask_experts = 2\nhidden = [64, 32]\ntower = [16]", LABELS),
            ("kind = 'din'\nattention_hidden = [16]\nhidden = [64]", SEQUENCES),
            ("kind = 'bst'\nlayers = 2\nheads = 2\nffn = 16\nhidden = [64]", SEQUENCES),
        ];
        for (network, features) in networks {
            let work = work(network, features);
            let weights: f64 = work.products.iter().map(Product::weights).sum();
            let share = weights / work.parameters;
            assert!((0.85..=1.1).contains(&share), "{network}: {weights} of {}", work.parameters);
        }
    }

    #[test]
    fn arithmetic_is_six_times_the_weights_and_the_pairs() {
        let ffnn = work("kind = 'ffnn'\nhidden = [8]", "");
        // 13 numbers and 26 vectors of 4.
        assert_eq!(ffnn.flop(), 6.0 * (117.0 * 8.0 + 8.0));
        let dlrm = work("kind = 'dlrm'\nbottom = []\ntop = []", "");
        assert_eq!(dlrm.flop(), 6.0 * (13.0 * 4.0 + (4.0 + 351.0) + 27.0 * 27.0 * 4.0));
        assert!(!dlrm.by_autograd && work("kind = 'wukong'", "").by_autograd);
    }
}
