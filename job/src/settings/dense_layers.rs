//! The layers of a dense network, from the job alone: what a server must know to hold them as tiles.
//!
//! A layer is what one call makes: a matrix with its bias, or a matrix alone. Its weights are used, sent and updated
//! together. The list has the order in which the network makes its weights; a test of the dense worker compares it with the
//! real networks.

use super::{ExpertLayers, Job, Mlp, Model, Structure};

/// Bound of the first factors of DeepFM's numeric columns. It is the default bound of an embedding row's first values.
pub const FACTOR_BOUND: f32 = 0.01;

/// One layer of a dense network.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseLayer {
    /// What the names of its variables begin with, such as `top.0`.
    pub name: String,
    /// Values of its variables, one after another: those of `[outputs, inputs]`, then those of the bias.
    pub weights: usize,
    /// First weights are uniform in ± this.
    pub bound: f32,
}

/// The bound of the first weights of a linear layer: 1/√inputs, as PyTorch's `nn.Linear` has it.
#[must_use]
pub fn linear_bound(inputs: usize) -> f32 {
    1.0 / (inputs as f32).sqrt()
}

impl Job {
    /// The layers of the dense network in the order of its weights; `None` for a network whose layers are not used one
    /// after another, or not known: it has sequences, norms, embedded numbers, gates, or is a user's module.
    #[must_use]
    pub fn dense_layers(&self) -> Option<Vec<DenseLayer>> {
        let has_plain_layers = self.mlp == Mlp::default() && self.features.numeric_embedding.is_none();
        let vectors = self.features.categorical.iter();
        if !has_plain_layers || vectors.clone().any(|feature| feature.values.sequence().is_some()) {
            return None;
        }
        let dims: Vec<usize> = vectors.map(|feature| self.tables[feature.table].dim).collect();
        let outputs: Vec<usize> = self.features.targets.iter().map(super::Target::outputs).collect();
        let shape = Shape { numeric: self.features.numeric_values(), dims: &dims, outputs: &outputs };
        let mut layers = Layers(Vec::new());
        layers.network(&self.model, &shape).then_some(layers.0)
    }
}

/// What the network reads and gives.
struct Shape<'a> {
    numeric: usize,
    /// Values of each feature vector.
    dims: &'a [usize],
    /// Outputs of each target.
    outputs: &'a [usize],
}

impl Shape<'_> {
    /// Numbers and vectors side by side.
    fn width(&self) -> usize {
        self.numeric + self.dims.iter().sum::<usize>()
    }

    fn all_outputs(&self) -> usize {
        self.outputs.iter().sum()
    }
}

struct Layers(Vec<DenseLayer>);

impl Layers {
    /// Appends the layers of a network; `false` for one that has no such list.
    fn network(&mut self, model: &Model, shape: &Shape<'_>) -> bool {
        match model {
            Model::Dlrm { bottom, top, .. } => self.dlrm(bottom, top, shape),
            Model::Ffnn { hidden, .. } => self.mlp("layers", shape.width(), hidden, Some(shape.all_outputs())),
            Model::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                (0..*cross_layers).for_each(|index| self.cross(index, shape.width(), *rank));
                self.after_cross(*structure, hidden, shape);
            }
            Model::DeepFm { hidden, .. } => {
                let factors = shape.dims.iter().max().map_or(0, |dim| dim.saturating_sub(1));
                if shape.numeric > 0 {
                    self.linear("first_order", 0, shape.numeric, 1);
                    self.push("factors".to_owned(), shape.numeric * factors, FACTOR_BOUND);
                }
                let inputs = (shape.numeric + shape.dims.len()) * factors;
                self.mlp("deep", inputs, hidden, Some(shape.all_outputs()));
            }
            Model::WideDeep { hidden, .. } => {
                if shape.numeric > 0 {
                    self.linear("wide", 0, shape.numeric, 1);
                }
                let vectors: usize = shape.dims.iter().map(|dim| dim.saturating_sub(1)).sum();
                self.mlp("deep", shape.numeric + vectors, hidden, Some(shape.all_outputs()));
            }
            Model::FinalMlp { first, second, heads, gate: None, .. } => {
                let outputs = shape.all_outputs();
                let [a, b] = [("first", first), ("second", second)].map(|(name, hidden)| {
                    self.mlp(name, shape.width(), hidden, None);
                    last(hidden, shape.width())
                });
                self.linear("fusion_first", 0, a, outputs);
                self.matrix("fusion_second", 0, b, outputs);
                self.matrix("fusion", 0, a * b / heads, outputs);
            }
            Model::SharedBottom { bottom, tower, .. } => {
                self.mlp("bottom", shape.width(), bottom, None);
                self.towers(last(bottom, shape.width()), tower, shape);
            }
            Model::Mmoe { experts, layers: ExpertLayers { hidden, tower, .. } } if !hidden.is_empty() => {
                self.experts("expert", *experts, shape.width(), hidden);
                (0..shape.outputs.len()).for_each(|target| self.matrix("gate", target, shape.width(), *experts));
                self.towers(last(hidden, shape.width()), tower, shape);
            }
            Model::Ple { levels, shared_experts, task_experts, layers: ExpertLayers { hidden, tower, .. } }
                if !hidden.is_empty() =>
            {
                for level in 0..*levels {
                    let inputs = if level == 0 { shape.width() } else { last(hidden, 0) };
                    self.ple_level((level, level + 1 == *levels), inputs, (*shared_experts, *task_experts, hidden), shape);
                }
                self.towers(last(hidden, 0), tower, shape);
            }
            Model::FinalMlp { .. }
            | Model::Mmoe { .. }
            | Model::Ple { .. }
            | Model::Wukong { .. }
            | Model::Din { .. }
            | Model::Bst { .. }
            | Model::TorchScript { .. } => return false,
        }
        true
    }

    fn dlrm(&mut self, bottom: &[i64], top: &[i64], shape: &Shape<'_>) {
        let has_bottom = shape.numeric > 0;
        let (dim, vectors) = (shape.dims.first().copied().unwrap_or(0), shape.dims.len() + usize::from(has_bottom));
        if has_bottom {
            self.mlp("bottom", shape.numeric, bottom, Some(dim));
        }
        let pairs = vectors * vectors.saturating_sub(1) / 2;
        let inputs = pairs + if has_bottom { dim } else { 0 };
        self.mlp("top", inputs, top, Some(shape.all_outputs()));
    }

    fn cross(&mut self, index: usize, width: usize, rank: Option<usize>) {
        let Some(rank) = rank else { return self.linear("cross", index, width, width) };
        self.matrix("cross_down", index, width, rank);
        self.linear("cross_up", index, rank, width);
    }

    fn after_cross(&mut self, structure: Structure, hidden: &[i64], shape: &Shape<'_>) {
        let width = shape.width();
        self.mlp("deep", width, hidden, None);
        let read = match (structure, hidden.is_empty()) {
            (Structure::Stacked, _) => last(hidden, width),
            (Structure::Parallel, false) => width + last(hidden, width),
            (Structure::Parallel, true) => width,
        };
        self.linear("output", 0, read, shape.all_outputs());
    }

    fn ple_level(
        &mut self,
        (level, is_last): (usize, bool),
        inputs: usize,
        (shared, own, hidden): (usize, usize, &[i64]),
        shape: &Shape<'_>,
    ) {
        let targets = shape.outputs.len();
        self.experts(&format!("level_{level}_shared"), shared, inputs, hidden);
        (0..targets).for_each(|target| self.experts(&format!("level_{level}_target_{target}"), own, inputs, hidden));
        (0..targets).for_each(|target| self.matrix(&format!("level_{level}_gate"), target, inputs, own + shared));
        if !is_last {
            self.matrix(&format!("level_{level}_shared_gate"), 0, inputs, targets * own + shared);
        }
    }

    fn experts(&mut self, name: &str, count: usize, inputs: usize, hidden: &[i64]) {
        (0..count).for_each(|index| self.mlp(&format!("{name}_{index}"), inputs, hidden, None));
    }

    fn towers(&mut self, inputs: usize, tower: &[i64], shape: &Shape<'_>) {
        for (target, outputs) in shape.outputs.iter().enumerate() {
            self.mlp(&format!("tower_{target}"), inputs, tower, Some(*outputs));
        }
    }

    /// Linear layers of these widths, then one of `outputs`.
    fn mlp(&mut self, name: &str, mut inputs: usize, hidden: &[i64], outputs: Option<usize>) {
        let widths = hidden.iter().map(|width| width.unsigned_abs() as usize).chain(outputs);
        for (index, width) in widths.enumerate() {
            self.linear(name, index, inputs, width);
            inputs = width;
        }
    }

    fn linear(&mut self, stack: &str, index: usize, inputs: usize, outputs: usize) {
        self.push(format!("{stack}.{index}"), inputs * outputs + outputs, linear_bound(inputs));
    }

    fn matrix(&mut self, stack: &str, index: usize, inputs: usize, outputs: usize) {
        self.push(format!("{stack}.{index}"), inputs * outputs, linear_bound(inputs));
    }

    fn push(&mut self, name: String, weights: usize, bound: f32) {
        self.0.push(DenseLayer { name, weights, bound });
    }
}

/// The width of an MLP's output.
fn last(hidden: &[i64], inputs: usize) -> usize {
    hidden.last().map_or(inputs, |width| width.unsigned_abs() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job};

    fn layers(text: &str) -> Option<Vec<DenseLayer>> {
        job(CRITEO, text).dense_layers()
    }

    #[test]
    fn a_network_has_as_many_weights_as_its_layers_together() {
        let networks = [
            "kind = 'dlrm'\nbottom = [8]\ntop = [6]",
            "kind = 'ffnn'\nhidden = [8, 6]",
            "kind = 'dcnv2'\nhidden = [8, 6]",
            "kind = 'dcnv2'\nhidden = [8]\nstructure = 'parallel'\nrank = 5",
            "kind = 'dcnv2'\nhidden = []\nstructure = 'parallel'",
            "kind = 'deepfm'\nhidden = [8, 6]",
            "kind = 'wide_deep'\nhidden = [8, 6]",
            "kind = 'finalmlp'\nfirst = [8, 6]\nsecond = [9]\nheads = 3",
            "kind = 'shared_bottom'\nbottom = [8, 6]\ntower = [5]",
            "kind = 'shared_bottom'\nbottom = []\ntower = []",
            "kind = 'mmoe'\nexperts = 3\nhidden = [8, 6]\ntower = [5]",
            "kind = 'ple'\nlevels = 3\nshared_experts = 1\ntask_experts = 2\nhidden = [8, 6]\ntower = [5]",
        ];
        for network in networks {
            let job = job(CRITEO, &format!("[model]\n{network}\n"));
            let sum: usize = job.dense_layers().expect(network).iter().map(|layer| layer.weights).sum();
            assert_eq!(Some(sum as u64), job.dense_parameters(), "{network}");
        }
    }

    #[test]
    fn a_layer_has_the_name_of_its_variables_and_the_bound_of_its_inputs() {
        let found = layers("[model]\nkind = 'dlrm'\nbottom = [8]\ntop = [6]\n").unwrap();
        let names: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["bottom.0", "bottom.1", "top.0", "top.1"]);
        assert_eq!((found[0].weights, found[0].bound), (13 * 8 + 8, 1.0 / 13.0_f32.sqrt()));
    }

    #[test]
    fn networks_whose_layers_are_not_used_one_by_one_have_no_list() {
        for text in [
            "[model]\nkind = 'wukong'\n",
            "[mlp]\nnorm = 'layer'\n",
            "[model]\nkind = 'finalmlp'\nfirst = [8]\nsecond = [4]\ngate = {}\n",
            "[features]\nnumeric_embedding = { dim = 4 }\n",
        ] {
            assert_eq!(layers(text), None, "{text}");
        }
    }
}
