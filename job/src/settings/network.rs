//! The number of parameters of a dense network, from its settings, its features and the width of their tables. A test of
//! the planner compares it with the real networks.

use super::{Attention, AttentionActivation, ExpertLayers, Job, Model, Structure};

/// The size of a sequence that is compared with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairSize {
    /// Values of each vector.
    pub dim: u64,
    /// Positions.
    pub length: u64,
}

impl Job {
    /// Weights and biases of the dense network; `None` for a user's module, which is not loaded for this.
    #[must_use]
    pub fn dense_parameters(&self) -> Option<u64> {
        let dim = |feature: &super::Categorical| self.tables[feature.table].dim as u64;
        let vectors = self.features.categorical.iter().filter(|feature| feature.values.sequence().is_none());
        let dims: Vec<u64> = vectors.map(dim).collect();
        let sequences: Vec<PairSize> = self.model.attention().iter().filter_map(|pair| self.pair_size(pair)).collect();
        let numeric = self.features.numeric_values() as u64;
        let numbers = self.features.single_numbers().len() as u64;
        let embedded = self.features.numeric_embedding.map_or(0, |embedding| embedding.parameters(numbers));
        let outputs: Vec<u64> = self.features.targets.iter().map(|target| target.outputs() as u64).collect();
        let layers = self.model.parameters(numeric, &dims, &sequences, &outputs)?;
        let gates = self.gate_parameters(numeric + dims.iter().sum::<u64>());
        Some(embedded + layers + gates + self.mlp.parameters(&self.model, numeric, &dims))
    }

    /// Of the gates of a FinalMLP with an input of `width` values.
    fn gate_parameters(&self, width: u64) -> u64 {
        let Model::FinalMlp { gate: Some(gate), .. } = &self.model else { return 0 };
        let of = |names: &[String]| match self.input_columns(names).len() as u64 {
            0 => width,
            read => mlp(read, &gate.hidden, width),
        };
        of(&gate.first) + of(&gate.second)
    }

    fn pair_size(&self, pair: &Attention) -> Option<PairSize> {
        let feature = self.features.categorical.iter().find(|feature| feature.name == pair.sequence)?;
        let length = feature.values.sequence()?.length as u64;
        Some(PairSize { dim: self.tables[feature.table].dim as u64, length })
    }
}

impl Model {
    /// Share of hidden units that a training step drops.
    #[must_use]
    pub fn dropout(&self) -> f64 {
        match self {
            Self::Dlrm { dropout, .. }
            | Self::Ffnn { dropout, .. }
            | Self::Dcnv2 { dropout, .. }
            | Self::DeepFm { dropout, .. }
            | Self::WideDeep { dropout, .. }
            | Self::Wukong { dropout, .. }
            | Self::FinalMlp { dropout, .. }
            | Self::SharedBottom { dropout, .. }
            | Self::Mmoe { layers: ExpertLayers { dropout, .. }, .. }
            | Self::Ple { layers: ExpertLayers { dropout, .. }, .. }
            | Self::Din { dropout, .. }
            | Self::Bst { dropout, .. } => *dropout,
            // The module has its own dropout.
            Self::TorchScript { .. } => 0.0,
        }
    }

    /// The sequences that the network reads, each with its target.
    #[must_use]
    pub fn attention(&self) -> &[Attention] {
        match self {
            Self::Din { attention, .. } | Self::Bst { attention, .. } => attention,
            _ => &[],
        }
    }

    /// Weights and biases over `numeric` values, feature vectors of `dims`, and pairs of a sequence and a target, with `outputs`
    /// of each label, without the gates of a FinalMLP; `None` for a user's module.
    #[must_use]
    pub fn parameters(&self, numeric: u64, dims: &[u64], sequences: &[PairSize], outputs: &[u64]) -> Option<u64> {
        let all: u64 = outputs.iter().sum();
        let towers = |read: u64, tower: &[i64]| outputs.iter().map(|outputs| mlp(read, tower, *outputs)).sum::<u64>();
        let width = numeric + dims.iter().sum::<u64>();
        // The vectors without their first value, which is the id's own weight.
        let factors = dims.iter().map(|dim| dim.saturating_sub(1));
        Some(match self {
            Self::Dlrm { bottom, top, .. } => dlrm(numeric, dims, bottom, top, all),
            Self::Ffnn { hidden, .. } => mlp(width, hidden, all),
            Self::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                let matrix = rank.map_or(width * width, |rank| 2 * rank as u64 * width);
                *cross_layers as u64 * (matrix + width) + dcn_deep(width, *structure, hidden, all)
            }
            Self::DeepFm { hidden, .. } => {
                let factors = factors.max().unwrap_or(0);
                linear(numeric) + numeric * factors + mlp((numeric + dims.len() as u64) * factors, hidden, 1)
            }
            Self::WideDeep { hidden, .. } => linear(numeric) + mlp(numeric + factors.sum::<u64>(), hidden, 1),
            Self::Wukong { layers, fmb, lcb, rank, fmb_hidden, bottom, top, .. } => {
                let dim = dims.first().copied().unwrap_or(0);
                let below = if numeric > 0 { mlp(numeric, bottom, dim) } else { 0 };
                let (vectors, made) = (dims.len() as u64 + u64::from(numeric > 0), (*fmb + *lcb) as u64);
                let layer = |vectors: u64| {
                    let (rank, norms) = (*rank as u64, 2 * (vectors * *rank as u64 + dim));
                    let residual = if vectors == made { 0 } else { made * vectors };
                    let machine = mlp(vectors * rank, fmb_hidden, *fmb as u64 * dim);
                    (rank + *lcb as u64) * vectors + residual + norms + machine
                };
                below + layer(vectors) + (*layers as u64 - 1) * layer(made) + mlp(made * dim, top, all)
            }
            Self::FinalMlp { first, second, heads, .. } => {
                let (first, a) = expert(width, first);
                let (second, b) = expert(width, second);
                first + second + all * (a + b + 1 + a * b / *heads as u64)
            }
            Self::SharedBottom { bottom, tower, .. } => match bottom.split_last() {
                Some((last, below)) => mlp(width, below, last.unsigned_abs()) + towers(last.unsigned_abs(), tower),
                None => towers(width, tower),
            },
            Self::Mmoe { experts, layers: ExpertLayers { hidden, tower, .. } } => {
                let (experts, (expert, read)) = (*experts as u64, expert(width, hidden));
                experts * expert + outputs.len() as u64 * experts * width + towers(read, tower)
            }
            Self::Ple { levels, shared_experts, task_experts, layers: ExpertLayers { hidden, tower, .. } } => {
                let (shared, own, targets) = (*shared_experts as u64, *task_experts as u64, outputs.len() as u64);
                let everyone = targets * own + shared;
                let level = |index: usize, input: u64| {
                    let shared_gate = if index + 1 < *levels { everyone * input } else { 0 };
                    everyone * expert(input, hidden).0 + targets * (own + shared) * input + shared_gate
                };
                let (_, read) = expert(width, hidden);
                let levels = (0..*levels).map(|index| level(index, if index == 0 { width } else { read }));
                levels.sum::<u64>() + towers(read, tower)
            }
            Self::Din { attention_hidden, activation, hidden, .. } => {
                let slopes = match activation {
                    AttentionActivation::Prelu | AttentionActivation::Dice => {
                        attention_hidden.iter().map(|width| width.unsigned_abs()).sum()
                    }
                    AttentionActivation::Sigmoid | AttentionActivation::Relu => 0,
                };
                let units = sequences.iter().map(|pair| mlp(4 * pair.dim, attention_hidden, 1) + slopes);
                units.sum::<u64>() + mlp(width + sequences.iter().map(|pair| pair.dim).sum::<u64>(), hidden, all)
            }
            Self::Bst { layers, ffn, hidden, .. } => {
                let block = |dim: u64| 4 * dim * dim + 4 * dim + mlp(dim, &[*ffn as i64], dim);
                let outputs = |pair: &PairSize| (pair.length + 1) * pair.dim;
                let transformers = sequences.iter().map(|pair| outputs(pair) + *layers as u64 * block(pair.dim));
                transformers.sum::<u64>() + mlp(width + sequences.iter().map(outputs).sum::<u64>(), hidden, all)
            }
            Self::TorchScript { .. } => return None,
        })
    }
}

/// The parameters of an expert, and the width of what it gives.
fn expert(input: u64, hidden: &[i64]) -> (u64, u64) {
    match hidden.split_last() {
        Some((last, below)) => (mlp(input, below, last.unsigned_abs()), last.unsigned_abs()),
        None => (0, input),
    }
}

fn dlrm(numeric: u64, dims: &[u64], bottom: &[i64], top: &[i64], outputs: u64) -> u64 {
    let dim = dims.first().copied().unwrap_or(0);
    let (below, width) = if numeric > 0 { (mlp(numeric, bottom, dim), dim) } else { (0, 0) };
    let vectors = dims.len() as u64 + u64::from(numeric > 0);
    below + mlp(width + vectors * vectors.saturating_sub(1) / 2, top, outputs)
}

/// The deep MLP and the output layer of a DCN-V2.
fn dcn_deep(width: u64, structure: Structure, hidden: &[i64], outputs: u64) -> u64 {
    match (structure, hidden.split_last()) {
        (Structure::Stacked, Some(_)) => mlp(width, hidden, outputs),
        (Structure::Parallel, Some((last, below))) => {
            let last = last.unsigned_abs();
            mlp(width, below, last) + mlp(width + last, &[], outputs)
        }
        (_, None) => mlp(width, &[], outputs),
    }
}

/// A weight for each numeric value, and a bias; none without numeric values.
fn linear(numeric: u64) -> u64 {
    if numeric > 0 { numeric + 1 } else { 0 }
}

fn mlp(input: u64, hidden: &[i64], output: u64) -> u64 {
    let hidden = hidden.iter().map(|width| width.unsigned_abs());
    let widths: Vec<u64> = [input].into_iter().chain(hidden).chain([output]).collect();
    widths.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mlp_counts_weights_and_biases() {
        assert_eq!(mlp(13, &[512, 256], 16), 13 * 512 + 512 + 512 * 256 + 256 + 256 * 16 + 16);
        assert_eq!(mlp(4, &[], 1), 5);
    }

    #[test]
    fn a_module_of_the_users_is_not_counted() {
        let model = Model::TorchScript { file: "net.pt".into(), sha256: String::new(), trust: true };
        assert_eq!(model.parameters(3, &[4, 4], &[], &[1]), None);
    }
}
