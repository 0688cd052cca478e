//! The tensors of a dense network in the order in which a worker holds them, without the network. Counts of weights and
//! FLOP, and the rules of µP, are sums over it.

use crate::settings::{MlpActivation, MlpNorm, MlpSettings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerDim {
    pub size: u64,
    /// How it grows with the network's width: 0 not at all, 1 in proportion, 2 with the square.
    pub power: i32,
}

impl LayerDim {
    /// A dimension that features, labels or a fixed key give.
    pub fn fixed(size: u64) -> Self {
        Self { size, power: 0 }
    }

    pub fn wide(size: u64) -> Self {
        Self { size, power: 1 }
    }

    /// As many values for each of `count`.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { size: self.size * count, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// A matrix that values are multiplied with.
    Weight,
    /// Added to the outputs of a layer.
    Bias,
    /// A learned factor or summand of each value: norms and slopes.
    Scale,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FirstValues {
    /// Uniform in ±bound.
    Uniform(f64),
    /// Normal, with mean 0 and this deviation.
    Normal(f64),
    Constant(f32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct DenseTensor {
    /// Its name in a saved model: `top.0.weight`.
    pub name: String,
    /// Sizes of its dimensions; of a layer's weight outputs first.
    pub shape: Vec<u64>,
    pub role: TensorRole,
    /// Values that a layer reads: fan-in.
    pub inputs: LayerDim,
    /// Values that a layer gives: fan-out.
    pub outputs: LayerDim,
    pub first: FirstValues,
    /// How many vectors of a sample are multiplied with it.
    pub uses: u64,
    /// The name of its layer, whose tensors are used together: its own name without the last part, or that of a group of layers.
    pub layer: String,
}

impl DenseTensor {
    pub fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// By µP (Yang et al. 2022, table 3): the power of the network's width in the factor of the learning rate, of SGD or of an optimiser
    /// that divides by the size of gradients.
    pub fn lr_power(&self, is_sgd: bool) -> i32 {
        match self.role {
            TensorRole::Weight if is_sgd => self.outputs.power - self.inputs.power,
            TensorRole::Weight => -self.inputs.power,
            TensorRole::Bias | TensorRole::Scale if is_sgd => self.outputs.power,
            TensorRole::Bias | TensorRole::Scale => 0,
        }
    }

    /// By µP: the power of the network's width in the factor of the first values.
    pub fn first_power(&self) -> f64 {
        let half = f64::from(self.inputs.power) / 2.0;
        match self.role {
            TensorRole::Weight if self.outputs.power == 0 => -half,
            TensorRole::Bias => half,
            TensorRole::Weight | TensorRole::Scale => 0.0,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseLayout {
    pub tensors: Vec<DenseTensor>,
    /// Multiplications of a sample's values with each other, forward: dot products of vectors, and attention.
    pub products: u64,
}

impl DenseLayout {
    pub fn parameter_count(&self) -> u64 {
        self.tensors.iter().map(DenseTensor::len).sum()
    }

    /// A multiplication and an addition for each weight, forward, for the gradient of the input and for that of the
    /// weight; the same for products of values. Additions of biases, norms and activations are not counted.
    pub fn step_flop(&self) -> u64 {
        let weights = self.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight);
        let multiplied: u64 = weights.map(|tensor| tensor.len() * tensor.uses).sum();
        6 * (multiplied + self.products)
    }
}

/// Lists tensors as `Weights` of the dense worker makes them.
#[derive(Debug)]
pub(crate) struct LayoutBuilder {
    layout: DenseLayout,
    mlp: MlpSettings,
    uses: u64,
    /// The name of the layer, where the next tensors are one.
    layer: Option<String>,
}

impl LayoutBuilder {
    /// `mlp` is what follows hidden layers.
    pub(crate) fn new(mlp: MlpSettings) -> Self {
        Self { layout: DenseLayout::default(), mlp, uses: 1, layer: None }
    }

    pub(crate) fn tensor_count(&self) -> usize {
        self.layout.tensors.len()
    }

    pub(crate) fn into_layout(self) -> DenseLayout {
        self.layout
    }

    /// The layers that `make` adds do without the job's norm and activation.
    pub(crate) fn with_plain_mlp<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        let chosen = std::mem::take(&mut self.mlp);
        let made = make(self);
        self.mlp = chosen;
        made
    }

    pub(crate) fn each_of<T>(&mut self, uses: u64, make: impl FnOnce(&mut Self) -> T) -> T {
        let outer_uses = std::mem::replace(&mut self.uses, uses);
        let made = make(self);
        self.uses = outer_uses;
        made
    }

    /// Tensors that are used together, as a layer of this name.
    pub(crate) fn one_layer<T>(&mut self, name: String, make: impl FnOnce(&mut Self) -> T) -> T {
        self.layer = Some(name);
        let made = make(self);
        self.layer = None;
        made
    }

    pub(crate) fn count_products(&mut self, count: u64) {
        self.layout.products += count;
    }

    pub(crate) fn add_linear(&mut self, stack: &str, index: usize, inputs: LayerDim, outputs: LayerDim) {
        self.add_matrix(stack, index, inputs, outputs);
        let bias = format!("{stack}.{index}.bias");
        self.tensor(bias, vec![outputs.size], TensorRole::Bias, (inputs, outputs), FirstValues::Uniform(bound(inputs)));
    }

    pub(crate) fn add_matrix(&mut self, stack: &str, index: usize, inputs: LayerDim, outputs: LayerDim) {
        let (name, shape) = (format!("{stack}.{index}.weight"), vec![outputs.size, inputs.size]);
        self.tensor(name, shape, TensorRole::Weight, (inputs, outputs), FirstValues::Uniform(bound(inputs)));
    }

    pub(crate) fn add_fixed(&mut self, name: &str, shape: &[u64], role: TensorRole, first: FirstValues) {
        let (inputs, outputs) = (shape.first().copied().unwrap_or(1), shape.last().copied().unwrap_or(1));
        let extents = (LayerDim::fixed(inputs), LayerDim::fixed(outputs));
        self.tensor(name.to_owned(), shape.to_vec(), role, extents, first);
    }

    pub(crate) fn add_norm(&mut self, stack: &str, index: usize, width: LayerDim) {
        for (name, first) in [("weight", 1.0), ("bias", 0.0)] {
            self.scale(format!("{stack}.{index}.{name}"), width, first);
        }
    }

    /// A factor for each value.
    pub(crate) fn add_slopes(&mut self, stack: &str, index: usize, width: LayerDim, first: f32) {
        self.scale(format!("{stack}.{index}.weight"), width, first);
    }

    /// Norm and activation follow all but `last`. Returns what the last layer gives.
    pub(crate) fn add_mlp(
        &mut self,
        name: &str,
        inputs: LayerDim,
        hidden: &[LayerDim],
        last: Option<LayerDim>,
    ) -> LayerDim {
        let mut read = inputs;
        for (index, width) in hidden.iter().chain(&last).enumerate() {
            self.add_linear(name, index, read, *width);
            read = *width;
        }
        let MlpSettings { norm, activation } = self.mlp;
        for (index, width) in hidden.iter().enumerate().filter(|_| norm != MlpNorm::None) {
            self.add_norm(&format!("{name}_norm"), index, *width);
        }
        for (index, width) in hidden.iter().enumerate().filter(|_| activation == MlpActivation::Dice) {
            self.add_slopes(&format!("{name}_dice"), index, *width, 0.0);
        }
        read
    }

    fn scale(&mut self, name: String, width: LayerDim, first: f32) {
        let first = FirstValues::Constant(first);
        self.tensor(name, vec![width.size], TensorRole::Scale, (LayerDim::fixed(1), width), first);
    }

    fn tensor(
        &mut self,
        name: String,
        shape: Vec<u64>,
        role: TensorRole,
        of: (LayerDim, LayerDim),
        first: FirstValues,
    ) {
        let (inputs, outputs) = of;
        let own = || name.rsplit_once('.').map_or("", |(layer, _)| layer).to_owned();
        let layer = self.layer.clone().unwrap_or_else(own);
        self.layout.tensors.push(DenseTensor { name, shape, role, inputs, outputs, first, uses: self.uses, layer });
    }
}

/// Of PyTorch's `nn.Linear`: 1/√inputs.
fn bound(inputs: LayerDim) -> f64 {
    1.0 / (inputs.size as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mlp_counts_weights_and_biases() {
        let mut builder = LayoutBuilder::new(MlpSettings::default());
        let (fixed, wide) = (LayerDim::fixed, LayerDim::wide);
        assert_eq!(builder.add_mlp("top", fixed(13), &[wide(512), wide(256)], Some(fixed(16))), fixed(16));
        let layout = builder.into_layout();
        assert_eq!(layout.parameter_count(), 13 * 512 + 512 + 512 * 256 + 256 + 256 * 16 + 16);
        assert_eq!(layout.step_flop(), 6 * (13 * 512 + 512 * 256 + 256 * 16));
        let names: Vec<&str> = layout.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names[..3], ["top.0.weight", "top.0.bias", "top.1.weight"]);
        assert_eq!(layout.tensors[2].shape, [256, 512]);
    }

    #[test]
    fn norms_and_dice_follow_the_hidden_layers_alone() {
        let chosen = MlpSettings { activation: MlpActivation::Dice, norm: MlpNorm::Layer };
        let mut builder = LayoutBuilder::new(chosen);
        builder.add_mlp("deep", LayerDim::fixed(4), &[LayerDim::wide(8)], Some(LayerDim::fixed(1)));
        builder.with_plain_mlp(|builder| builder.add_mlp("unit", LayerDim::fixed(4), &[LayerDim::fixed(2)], None));
        let layout = builder.into_layout();
        assert_eq!(layout.parameter_count(), (4 * 8 + 8) + (8 + 1) + 2 * 8 + 8 + (4 * 2 + 2));
        assert_eq!(layout.tensors[5].first, FirstValues::Constant(0.0));
    }

    #[test]
    fn tensors_that_are_used_together_are_one_layer() {
        let mut builder = LayoutBuilder::new(MlpSettings::default());
        builder.one_layer("unit".to_owned(), |builder| {
            builder.add_mlp("unit", LayerDim::fixed(4), &[LayerDim::fixed(2)], None);
            builder.add_slopes("slopes", 0, LayerDim::fixed(2), 0.25);
        });
        builder.add_linear("top", 0, LayerDim::fixed(4), LayerDim::fixed(1));
        let layers: Vec<String> = builder.into_layout().tensors.into_iter().map(|tensor| tensor.layer).collect();
        assert_eq!(layers, ["unit", "unit", "unit", "top.0", "top.0"]);
    }

    #[test]
    fn vectors_that_share_layers_multiply_the_work_and_not_the_weights() {
        let mut builder = LayoutBuilder::new(MlpSettings::default());
        builder.each_of(5, |builder| builder.add_matrix("query", 0, LayerDim::fixed(4), LayerDim::fixed(4)));
        builder.count_products(7);
        let layout = builder.into_layout();
        assert_eq!((layout.parameter_count(), layout.step_flop()), (16, 6 * (5 * 16 + 7)));
    }
}
