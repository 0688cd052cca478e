//! The layout of each network: its tensors in the order in which the dense worker makes them. A test there compares the two.

use super::layout::{DenseLayout, FirstValues, LayerDim, LayoutBuilder, TensorRole};
use super::{AttentionActivation, AttentionPair, Categorical, CrossStructure, ExpertLayers, Job, Model, StreamGates};

#[derive(Debug)]
struct NetworkShape {
    /// Values of the numeric inputs, after their embedding.
    numeric: u64,
    /// Values of each feature vector that is not a sequence.
    dims: Vec<u64>,
    /// Sequences with a target.
    sequences: Vec<PairSize>,
    outputs: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PairSize {
    dim: u64,
    length: u64,
}

impl NetworkShape {
    fn new(job: &Job, model: &Model) -> Self {
        let dim = |feature: &Categorical| job.tables[feature.table].dim as u64;
        let vectors = job.features.categorical.iter().filter(|feature| feature.values.sequence().is_none());
        let pair = |pair: &AttentionPair| {
            let feature = job.features.categorical.iter().find(|feature| feature.name == pair.sequence)?;
            Some(PairSize { dim: dim(feature), length: feature.values.sequence()?.length as u64 })
        };
        Self {
            numeric: job.features.numeric_values() as u64,
            dims: vectors.map(dim).collect(),
            sequences: model.attention_pairs().iter().filter_map(pair).collect(),
            outputs: job.features.targets.iter().map(|target| target.output_count() as u64).collect(),
        }
    }

    fn all_outputs(&self) -> LayerDim {
        LayerDim::fixed(self.outputs.iter().sum())
    }

    /// All values side by side, without sequences.
    fn width(&self) -> u64 {
        self.numeric + self.dims.iter().sum::<u64>()
    }

    fn first_dim(&self) -> u64 {
        self.dims.first().copied().unwrap_or(0)
    }
}

impl Job {
    /// Weights and biases of the dense network; `None` for a user's module, which is not loaded for this.
    #[must_use]
    pub fn dense_parameters(&self) -> Option<u64> {
        Some(self.dense_layout()?.parameter_count())
    }

    /// The tensors of the dense network; `None` for a user's module.
    #[must_use]
    pub fn dense_layout(&self) -> Option<DenseLayout> {
        self.layout_of(&self.model)
    }

    /// As [`Self::dense_layout`], of another network over the same features.
    pub(crate) fn layout_of(&self, model: &Model) -> Option<DenseLayout> {
        let (shape, mut layout) = (NetworkShape::new(self, model), LayoutBuilder::new(self.mlp));
        self.numeric_embedding(&mut layout);
        match model {
            Model::Dlrm { bottom, top, .. } => dlrm(&mut layout, &shape, bottom, top),
            Model::Ffnn { hidden, .. } => {
                logit(&mut layout, "layers", LayerDim::fixed(shape.width()), hidden, &shape);
            }
            Model::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                cross(&mut layout, &shape, *cross_layers, *rank);
                dcn_deep(&mut layout, &shape, *structure, hidden);
            }
            Model::DeepFm { hidden, .. } => deepfm(&mut layout, &shape, hidden),
            Model::WideDeep { hidden, .. } => wide_deep(&mut layout, &shape, hidden),
            Model::Wukong { .. } => wukong(&mut layout, &shape, model),
            Model::FinalMlp { first, second, heads, gate, .. } => {
                let a = self.stream(&mut layout, &shape, "first", first, gate.as_ref());
                let b = self.stream(&mut layout, &shape, "second", second, gate.as_ref());
                fusion(&mut layout, shape.all_outputs(), a, b, *heads as u64);
            }
            Model::SharedBottom { bottom, tower, .. } => {
                let read = layout.add_mlp("bottom", LayerDim::fixed(shape.width()), &wide(bottom), None);
                towers(&mut layout, &shape, read, tower);
            }
            Model::Mmoe { experts, layers: ExpertLayers { hidden, tower, .. } } => {
                mmoe(&mut layout, &shape, *experts, hidden, tower);
            }
            Model::Ple { .. } => ple(&mut layout, &shape, model),
            Model::Din { hidden, .. } => {
                let read = shape.width() + shape.sequences.iter().map(|pair| pair.dim).sum::<u64>();
                activation_units(&mut layout, &shape, model);
                logit(&mut layout, "layers", LayerDim::fixed(read), hidden, &shape);
            }
            Model::Bst { hidden, .. } => {
                let pair_values = |pair: &PairSize| (pair.length + 1) * pair.dim;
                let read = shape.width() + shape.sequences.iter().map(pair_values).sum::<u64>();
                transformers(&mut layout, &shape, model);
                logit(&mut layout, "layers", LayerDim::fixed(read), hidden, &shape);
            }
            Model::TorchScript { .. } => return None,
        }
        Some(layout.into_layout())
    }

    fn numeric_embedding(&self, layout: &mut LayoutBuilder) {
        let Some(settings) = self.features.numeric_embedding else { return };
        let count = self.features.single_numbers().len() as u64;
        let (frequencies, dim) = (settings.frequencies as u64, settings.dim as u64);
        let uniform = FirstValues::Uniform(1.0 / (2.0 * frequencies as f64).sqrt());
        let name = |name: &str| format!("numeric_embedding.{name}");
        let normal = FirstValues::Normal(settings.sigma);
        layout.add_fixed(&name("frequencies"), &[count, frequencies], TensorRole::Scale, normal);
        layout.add_fixed(&name("weight"), &[count, 2 * frequencies, dim], TensorRole::Weight, uniform);
        layout.add_fixed(&name("bias"), &[count, dim], TensorRole::Bias, uniform);
    }

    fn stream(
        &self,
        layout: &mut LayoutBuilder,
        shape: &NetworkShape,
        name: &str,
        widths: &[i64],
        gate: Option<&StreamGates>,
    ) -> LayerDim {
        let width = shape.width();
        if let Some(gate) = gate {
            let read = self.input_columns(if name == "first" { &gate.first } else { &gate.second }).len() as u64;
            let gate_name = format!("gate_{name}");
            match read {
                // The bound is that of the dense worker.
                0 => layout.add_fixed(
                    &format!("{gate_name}.weight"),
                    &[1, width],
                    TensorRole::Scale,
                    FirstValues::Uniform(0.01),
                ),
                read => {
                    let (read, last) = (LayerDim::fixed(read), Some(LayerDim::fixed(width)));
                    layout.with_plain_mlp(|layout| layout.add_mlp(&gate_name, read, &fixed(&gate.hidden), last));
                }
            }
        }
        layout.add_mlp(name, LayerDim::fixed(width), &wide(widths), None)
    }
}

/// Hidden widths, which grow with the width of the network.
fn wide(widths: &[i64]) -> Vec<LayerDim> {
    widths.iter().map(|width| LayerDim::wide(width.unsigned_abs())).collect()
}

/// Widths of layers whose size is chosen on its own.
fn fixed(widths: &[i64]) -> Vec<LayerDim> {
    widths.iter().map(|width| LayerDim::fixed(width.unsigned_abs())).collect()
}

/// Hidden layers and the output layer of the network.
fn logit(layout: &mut LayoutBuilder, name: &str, inputs: LayerDim, hidden: &[i64], shape: &NetworkShape) {
    layout.add_mlp(name, inputs, &wide(hidden), Some(shape.all_outputs()));
}

fn bottom_mlp(layout: &mut LayoutBuilder, shape: &NetworkShape, bottom: &[i64]) {
    if shape.numeric > 0 {
        let widths = [&wide(bottom)[..], &[LayerDim::fixed(shape.first_dim())]].concat();
        layout.add_mlp("bottom", LayerDim::fixed(shape.numeric), &widths, None);
    }
}

fn dlrm(layout: &mut LayoutBuilder, shape: &NetworkShape, bottom: &[i64], top: &[i64]) {
    bottom_mlp(layout, shape, bottom);
    let (has_bottom, dim) = (shape.numeric > 0, shape.first_dim());
    let vectors = shape.dims.len() as u64 + u64::from(has_bottom);
    let pairs = vectors * vectors.saturating_sub(1) / 2;
    layout.count_products(pairs * dim);
    logit(layout, "top", LayerDim::fixed(pairs + if has_bottom { dim } else { 0 }), top, shape);
}

fn cross(layout: &mut LayoutBuilder, shape: &NetworkShape, layers: usize, rank: Option<usize>) {
    let width = LayerDim::fixed(shape.width());
    for index in 0..layers {
        match rank.map(|rank| LayerDim::fixed(rank as u64)) {
            None => layout.add_linear("cross", index, width, width),
            Some(rank) => {
                layout.add_matrix("cross_down", index, width, rank);
                layout.add_linear("cross_up", index, rank, width);
            }
        }
    }
}

fn dcn_deep(layout: &mut LayoutBuilder, shape: &NetworkShape, structure: CrossStructure, hidden: &[i64]) {
    let width = LayerDim::fixed(shape.width());
    let last = layout.add_mlp("deep", width, &wide(hidden), None);
    let read = match structure {
        CrossStructure::Parallel if !hidden.is_empty() => LayerDim { size: width.size + last.size, ..last },
        CrossStructure::Parallel | CrossStructure::Stacked => last,
    };
    logit(layout, "output", read, &[], shape);
}

fn deepfm(layout: &mut LayoutBuilder, shape: &NetworkShape, hidden: &[i64]) {
    let (numeric, factors) = (shape.numeric, shape.first_dim().saturating_sub(1));
    if numeric > 0 {
        layout.add_linear("first_order", 0, LayerDim::fixed(numeric), LayerDim::fixed(1));
        // The bound is that of the dense worker.
        layout.add_fixed("factors.weight", &[numeric, factors], TensorRole::Scale, FirstValues::Uniform(0.01));
    }
    let fields = numeric + shape.dims.len() as u64;
    layout.count_products(fields * factors);
    logit(layout, "deep", LayerDim::fixed(fields * factors), hidden, shape);
}

fn wide_deep(layout: &mut LayoutBuilder, shape: &NetworkShape, hidden: &[i64]) {
    // The vectors without their first value, which is the id's own weight.
    let rest: u64 = shape.dims.iter().map(|dim| dim.saturating_sub(1)).sum();
    if shape.numeric > 0 {
        layout.add_linear("wide", 0, LayerDim::fixed(shape.numeric), LayerDim::fixed(1));
    }
    logit(layout, "deep", LayerDim::fixed(shape.numeric + rest), hidden, shape);
}

fn wukong(layout: &mut LayoutBuilder, shape: &NetworkShape, model: &Model) {
    let Model::Wukong { layers, fmb, lcb, rank, fmb_hidden, bottom, top, .. } = model else { return };
    bottom_mlp(layout, shape, bottom);
    let (dim, rank) = (shape.first_dim(), *rank as u64);
    let [machine, compressed] = [*fmb, *lcb].map(|vectors| LayerDim::wide(vectors as u64));
    let given = LayerDim::wide(machine.size + compressed.size);
    let mut vectors = LayerDim::fixed(shape.dims.len() as u64 + u64::from(shape.numeric > 0));
    for index in 0..*layers {
        let products = vectors.times(rank);
        layout.one_layer(format!("fmb_projection.{index}"), |layout| {
            layout.each_of(dim, |layout| layout.add_matrix("fmb_projection", index, vectors, LayerDim::fixed(rank)));
            layout.add_norm("fmb_norm", index, products);
        });
        layout.count_products(products.size * dim);
        layout.add_mlp(&format!("fmb_{index}"), products, &wide(fmb_hidden), Some(machine.times(dim)));
        layout.one_layer(format!("lcb.{index}"), |layout| {
            layout.each_of(dim, |layout| {
                layout.add_matrix("lcb", index, vectors, compressed);
                if given.size != vectors.size {
                    layout.add_matrix("residual", index, vectors, given);
                }
            });
            layout.add_norm("norm", index, LayerDim::fixed(dim));
        });
        vectors = given;
    }
    logit(layout, "top", vectors.times(dim), top, shape);
}

/// Of two streams with `a` and `b` outputs. The product of two widths grows with the square.
fn fusion(layout: &mut LayoutBuilder, outputs: LayerDim, a: LayerDim, b: LayerDim, heads: u64) {
    layout.add_linear("fusion_first", 0, a, outputs);
    layout.add_matrix("fusion_second", 0, b, outputs);
    let products = LayerDim { size: a.size * b.size / heads.max(1), power: a.power + b.power };
    layout.add_matrix("fusion", 0, products, outputs);
    layout.count_products(b.size * outputs.size);
}

fn towers(layout: &mut LayoutBuilder, shape: &NetworkShape, read: LayerDim, tower: &[i64]) {
    for (target, outputs) in shape.outputs.iter().enumerate() {
        layout.add_mlp(&format!("tower_{target}"), read, &wide(tower), Some(LayerDim::fixed(*outputs)));
    }
}

/// So many experts. Returns what one gives.
fn experts(layout: &mut LayoutBuilder, name: &str, count: usize, inputs: LayerDim, hidden: &[i64]) -> LayerDim {
    let widths = wide(hidden);
    for index in 0..count {
        layout.add_mlp(&format!("{name}_{index}"), inputs, &widths, None);
    }
    widths.last().copied().unwrap_or(inputs)
}

fn mmoe(layout: &mut LayoutBuilder, shape: &NetworkShape, count: usize, hidden: &[i64], tower: &[i64]) {
    let width = LayerDim::fixed(shape.width());
    let read = experts(layout, "expert", count, width, hidden);
    for target in 0..shape.outputs.len() {
        layout.add_matrix("gate", target, width, LayerDim::fixed(count as u64));
        layout.count_products(count as u64 * read.size);
    }
    towers(layout, shape, read, tower);
}

fn ple(layout: &mut LayoutBuilder, shape: &NetworkShape, model: &Model) {
    let Model::Ple { levels, shared_experts, task_experts, layers: ExpertLayers { hidden, tower, .. } } = model else {
        return;
    };
    let targets = shape.outputs.len();
    let (seen, all) = (task_experts + shared_experts, targets * task_experts + shared_experts);
    let mut read = LayerDim::fixed(shape.width());
    for level in 0..*levels {
        let mut given = experts(layout, &format!("level_{level}_shared"), *shared_experts, read, hidden);
        for target in 0..targets {
            given = experts(layout, &format!("level_{level}_target_{target}"), *task_experts, read, hidden);
        }
        for target in 0..targets {
            layout.add_matrix(&format!("level_{level}_gate"), target, read, LayerDim::fixed(seen as u64));
            layout.count_products(seen as u64 * given.size);
        }
        if level + 1 < *levels {
            layout.add_matrix(&format!("level_{level}_shared_gate"), 0, read, LayerDim::fixed(all as u64));
            layout.count_products(all as u64 * given.size);
        }
        read = given;
    }
    towers(layout, shape, read, tower);
}

fn activation_units(layout: &mut LayoutBuilder, shape: &NetworkShape, model: &Model) {
    let Model::Din { attention_hidden, activation, .. } = model else { return };
    let slopes = match activation {
        AttentionActivation::Prelu => Some(("slopes", 0.25)),
        AttentionActivation::Dice => Some(("dice", 0.0)),
        AttentionActivation::Sigmoid | AttentionActivation::Relu => None,
    };
    for (index, pair) in shape.sequences.iter().enumerate() {
        let (name, widths) = (format!("attention_{index}"), fixed(attention_hidden));
        let unit = |layout: &mut LayoutBuilder| {
            layout.add_mlp(&name, LayerDim::fixed(4 * pair.dim), &widths, Some(LayerDim::fixed(1)));
        };
        layout.one_layer(name.clone(), |layout| {
            layout.each_of(pair.length, |layout| layout.with_plain_mlp(unit));
            for (layer, width) in widths.iter().enumerate() {
                if let Some((stack, first)) = slopes {
                    layout.add_slopes(&format!("{stack}_{index}"), layer, *width, first);
                }
            }
        });
        layout.count_products(2 * pair.length * pair.dim);
    }
}

fn transformers(layout: &mut LayoutBuilder, shape: &NetworkShape, model: &Model) {
    let Model::Bst { layers, ffn, .. } = model else { return };
    for (index, pair) in shape.sequences.iter().enumerate() {
        let (positions, dim) = (pair.length + 1, LayerDim::fixed(pair.dim));
        // The bound is that of the dense worker.
        let first = FirstValues::Uniform(0.01);
        layout.add_fixed(&format!("positions_{index}.weight"), &[positions, pair.dim], TensorRole::Scale, first);
        for layer in 0..*layers {
            let block = |layout: &mut LayoutBuilder| {
                for name in ["query", "key", "value", "mix"] {
                    layout.add_matrix(&format!("{name}_{index}"), layer, dim, dim);
                }
                layout.add_norm(&format!("attention_norm_{index}"), layer, dim);
                let hidden = [LayerDim::fixed(*ffn as u64)];
                layout
                    .with_plain_mlp(|layout| layout.add_mlp(&format!("ffn_{index}_{layer}"), dim, &hidden, Some(dim)));
                layout.add_norm(&format!("ffn_norm_{index}"), layer, dim);
            };
            layout.one_layer(format!("query_{index}.{layer}"), |layout| layout.each_of(positions, block));
            // Queries with keys, and their shares with values.
            layout.count_products(2 * positions * positions * pair.dim);
        }
    }
}

impl Model {
    /// Share of hidden units that a training step drops.
    #[must_use]
    pub fn dropout_share(&self) -> f64 {
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
    pub fn attention_pairs(&self) -> &[AttentionPair] {
        match self {
            Self::Din { attention, .. } | Self::Bst { attention, .. } => attention,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn flop_count_what_is_multiplied() {
        // 27 vectors of 16 values, 13 numbers; bottom 256, 64, 16, top 367, 256, 128, 1.
        let dlrm = job(CRITEO, "").dense_layout().unwrap();
        let weights = 13 * 256 + 256 * 64 + 64 * 16 + 367 * 256 + 256 * 128 + 128;
        assert_eq!(dlrm.step_flop(), 6 * (weights + 27 * 26 / 2 * 16));
        let ffnn = job(CRITEO, "[model]\nkind = 'ffnn'\nhidden = [8]\n").dense_layout().unwrap();
        assert_eq!(ffnn.step_flop(), 6 * (429 * 8 + 8));
    }
}
