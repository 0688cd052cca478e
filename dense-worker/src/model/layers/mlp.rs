//! Stacks of linear layers with norm, activation and dropout, and the source of their first weights.

use std::collections::HashMap;

use tch::nn::Path;
use tch::{Device, Kind, Tensor};
use zagros_job::{DenseTiles, Initializer, Job, MlpActivation, MlpNorm, Precision, StreamedTensor};
use zagros_table::init::RowSeed;
use zagros_zip::number_from;

use super::hidden::{BatchNorm, Dice, HiddenActivation, HiddenNorm, LayerNorm, LentBuffers};
use super::layer_calls::{LayerCalls, LayerNumber};
use crate::model::device::has_units;
use crate::model::{ModelError, int};

/// Makes the variables of a network with their first values. Those of a tensor are a function of the seed, its number and its
/// tiles, as an embedding server makes them that holds the tiles: streamed and resident weights begin with the same bits.
pub(crate) struct WeightBuilder<'a> {
    root: Path<'a>,
    seed: u64,
    tensors: HashMap<String, ListedTensor>,
    held: ValuesPlace,
    /// By layer: the variables that have no values here.
    streamed: Vec<Vec<Tensor>>,
    precision: Precision,
    layers: zagros_job::MlpSettings,
    /// Values that the network gives for a sample.
    outputs: usize,
    /// The buffers of the layers so far, by name, and where their forward finds them.
    buffers: Vec<(String, Tensor)>,
    lent: LentBuffers,
}

/// A tensor in the job's list.
struct ListedTensor {
    /// The number of its table at the servers.
    table: u32,
    /// How its first values are drawn.
    first: Initializer,
    layer: LayerNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValuesPlace {
    /// In the variables.
    Here,
    /// At the embedding servers. A variable has only its shape here, and no memory for its values.
    AtServers,
}

impl<'a> WeightBuilder<'a> {
    pub(crate) fn new(job: &Job, root: Path<'a>, held: ValuesPlace) -> Self {
        let layers = job.dense_layers().unwrap_or_default();
        let streamed = layers.iter().map(|_| Vec::new()).collect();
        let mut tensors = HashMap::new();
        for (layer, tensors_of) in layers.into_iter().enumerate() {
            for StreamedTensor { segment, table, .. } in tensors_of.tensors {
                let first = segment.initializer();
                tensors.insert(segment.tensor.name, ListedTensor { table, first, layer });
            }
        }
        Self {
            root,
            seed: job.train.seed,
            tensors,
            held,
            streamed,
            precision: job.train.precision,
            layers: job.mlp,
            outputs: job.features.output_count(),
            buffers: Vec::new(),
            lent: LentBuffers::default(),
        }
    }

    pub(crate) fn output_count(&self) -> usize {
        self.outputs
    }

    /// Makes layers with an activation of their own, to which the choice of the job does not apply.
    pub(crate) fn without_layer_choices<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        let chosen = std::mem::take(&mut self.layers);
        let made = make(self);
        self.layers = chosen;
        made
    }

    /// What was made besides the variables that have their values.
    pub(crate) fn finish(self) -> MadeBeside {
        MadeBeside { buffers: self.buffers, lent: self.lent, streamed: self.streamed }
    }

    pub(crate) fn layer_of(&self, tensor: &str) -> LayerNumber {
        self.tensors.get(tensor).map_or(0, |tensor| tensor.layer)
    }

    /// `stack.index.weight` of `[outputs, inputs]` and `stack.index.bias` of `[outputs]`, as PyTorch's `nn.Linear` has them.
    pub(crate) fn linear(
        &mut self,
        stack: &str,
        index: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<LinearLayer, ModelError> {
        let (weight, place) = (self.matrix(stack, index, inputs, outputs)?, format!("{stack}.{index}"));
        let bias = self.variable(&place, "bias", &[outputs])?;
        Ok(LinearLayer { weight, bias, layer: self.layer_of(&format!("{place}.weight")) })
    }

    /// Only `stack.index.weight`, as in [`Self::linear`].
    pub(crate) fn matrix(
        &mut self,
        stack: &str,
        index: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<Tensor, ModelError> {
        self.variable(&format!("{stack}.{index}"), "weight", &[outputs, inputs])
    }

    /// `name.weight` of `[rows, dim]`.
    pub(crate) fn factors(&mut self, name: &str, rows: usize, dim: usize) -> Result<Tensor, ModelError> {
        self.variable(name, "weight", &[rows, dim])
    }

    /// `layer.name` of this shape. The job's list of tensors says what its first values are.
    pub(crate) fn variable(&mut self, layer: &str, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let sizes: Vec<i64> = shape.iter().map(|size| int(*size)).collect();
        let tensor = self.tensors.get(&format!("{layer}.{name}"));
        let tensor = tensor.ok_or(ModelError::Shape { what: "a tensor of the network is not in its list" })?;
        if self.held == ValuesPlace::AtServers {
            let made = Tensor::f_zeros([1], (Kind::Float, Device::Cpu))?.f_expand(&sizes, false)?;
            self.streamed[tensor.layer].push(made.shallow_clone());
            return Ok(made);
        }
        let lengths: Vec<u64> = shape.iter().map(|length| *length as u64).collect();
        let values = first_values(self.seed, tensor.table, tensor.first, &lengths);
        let path = layer.split('.').fold(self.root.clone(), |path, part| &path / part);
        Ok(path.f_var_copy(name, &Tensor::f_from_slice(&values)?.f_reshape(&sizes)?)?)
    }

    /// `stack.index.weight` of ones and `stack.index.bias` of zeros, `[width]` each.
    pub(crate) fn norm(&mut self, stack: &str, index: usize, width: usize) -> Result<LayerNorm, ModelError> {
        let layer = format!("{stack}.{index}");
        let (weight, bias) = (self.variable(&layer, "weight", &[width])?, self.variable(&layer, "bias", &[width])?);
        Ok(LayerNorm { weight, bias, layer: self.layer_of(&format!("{layer}.weight")) })
    }

    /// As [`Self::norm`], with the buffers `stack.index.running_mean` of zeros and `stack.index.running_var` of ones.
    fn batch_norm(&mut self, stack: &str, index: usize, width: usize) -> Result<BatchNorm, ModelError> {
        let LayerNorm { weight, bias, layer } = self.norm(stack, index, width)?;
        Ok(BatchNorm { weight, bias, layer, first: self.statistics(stack, index, width)?, lent: self.lent.clone() })
    }

    /// `stack.index.weight` of zeros, `[width]`, with buffers as those of a batch norm.
    pub(crate) fn dice(&mut self, stack: &str, index: usize, width: usize) -> Result<Dice, ModelError> {
        let slopes = self.slopes(stack, index, width)?;
        let layer = self.layer_of(&format!("{stack}.{index}.weight"));
        Ok(Dice { slopes, layer, first: self.statistics(stack, index, width)?, lent: self.lent.clone() })
    }

    /// The buffers `stack.index.running_mean` and `.running_var`. Returns the position of the first.
    fn statistics(&mut self, stack: &str, index: usize, width: usize) -> Result<usize, ModelError> {
        let (path, of) = (&self.root / stack / index, (Kind::Float, self.root.device()));
        let first = self.buffers.len();
        for (name, values) in
            [("running_mean", Tensor::f_zeros([int(width)], of)?), ("running_var", Tensor::f_ones([int(width)], of)?)]
        {
            drop(path.add(name, values.shallow_clone(), false));
            self.buffers.push((format!("{stack}.{index}.{name}"), values));
        }
        Ok(first)
    }

    /// What is between a hidden layer and its activation.
    fn hidden_norm(&mut self, stack: &str, index: usize, width: usize) -> Result<HiddenNorm, ModelError> {
        let stack = format!("{stack}_norm");
        Ok(match self.layers.norm {
            MlpNorm::None => HiddenNorm::None,
            MlpNorm::Layer => HiddenNorm::Layer(self.norm(&stack, index, width)?),
            MlpNorm::Batch => HiddenNorm::Batch(self.batch_norm(&stack, index, width)?),
        })
    }

    fn activation(&mut self, stack: &str, index: usize, width: usize) -> Result<HiddenActivation, ModelError> {
        Ok(match self.layers.activation {
            MlpActivation::Dice => HiddenActivation::Dice(self.dice(&format!("{stack}_dice"), index, width)?),
            activation => HiddenActivation::Plain(activation),
        })
    }

    /// Only `stack.index.weight`, `[width]`: 0.25 as PyTorch's `nn.PReLU` has them, or 0 for Dice.
    pub(crate) fn slopes(&mut self, stack: &str, index: usize, width: usize) -> Result<Tensor, ModelError> {
        self.variable(&format!("{stack}.{index}"), "weight", &[width])
    }

    /// Indices of columns, on the device of the weights.
    pub(crate) fn column_indices(&self, indices: &[i64]) -> Result<Tensor, ModelError> {
        Ok(Tensor::f_from_slice(indices)?.f_to_device(self.root.device())?)
    }
}

pub(crate) struct MadeBeside {
    /// The buffers of all layers, by name.
    pub(crate) buffers: Vec<(String, Tensor)>,
    /// Where their forward finds them.
    pub(crate) lent: LentBuffers,
    /// By layer: the variables that have no values here.
    pub(crate) streamed: Vec<Vec<Tensor>>,
}

/// The first values of a tensor, tile by tile.
fn first_values(seed: u64, table: u32, first: Initializer, shape: &[u64]) -> Vec<f32> {
    let DenseTiles { dim, count, .. } = DenseTiles::new(shape);
    let weights = shape.iter().product::<u64>() as usize;
    let mut values = vec![0.0; dim * count];
    for (id, tile) in number_from(0, values.chunks_exact_mut(dim)) {
        first.fill(RowSeed { seed, table, id }, tile);
    }
    values.truncate(weights);
    values
}

/// W·x + b.
#[derive(Debug)]
pub(crate) struct LinearLayer {
    weight: Tensor,
    bias: Tensor,
    layer: LayerNumber,
}

impl LinearLayer {
    /// `[batch, inputs]` to `[batch, outputs]`.
    pub(crate) fn forward<'n>(&'n self, x: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        calls.layer(self.layer, [x], |[x]| Ok(x.f_linear(&self.weight, Some(&self.bias))?))
    }
}

/// Linear layers; norm, activation and dropout follow the hidden ones.
#[derive(Debug)]
pub(crate) struct Mlp {
    layers: Vec<LinearLayer>,
    /// Of each hidden layer.
    norms: Vec<HiddenNorm>,
    /// Of each hidden layer.
    activations: Vec<HiddenActivation>,
    precision: Precision,
}

impl Mlp {
    /// `widths` are the outputs of the layers. All are hidden ones.
    pub(crate) fn hidden(
        name: &str,
        inputs: usize,
        widths: &[usize],
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        Self::new(name, inputs, widths, widths.len(), weights)
    }

    /// As [`Self::hidden`], then one linear layer: the outputs of the network, such as a logit.
    pub(crate) fn logit(
        name: &str,
        inputs: usize,
        hidden: &[usize],
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        Self::linear_last(name, inputs, &[hidden, &[weights.outputs]].concat(), weights)
    }

    /// As [`Self::hidden`], but nothing follows the last layer.
    pub(crate) fn linear_last(
        name: &str,
        inputs: usize,
        widths: &[usize],
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        Self::new(name, inputs, widths, widths.len().saturating_sub(1), weights)
    }

    fn new(
        name: &str,
        inputs: usize,
        widths: &[usize],
        hidden: usize,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let layers = stack(name, inputs, widths, weights)?;
        let norm = |(index, width): (usize, &usize)| weights.hidden_norm(name, index, *width);
        let norms = widths[..hidden].iter().enumerate().map(norm).collect::<Result<_, _>>()?;
        let activation = |(index, width): (usize, &usize)| weights.activation(name, index, *width);
        let activations = widths[..hidden].iter().enumerate().map(activation).collect::<Result<_, _>>()?;
        Ok(Self { layers, norms, activations, precision: weights.precision })
    }

    /// Precision of a layer's products. The layer without an activation gives the logit, which stays f32: with the eight
    /// bits of a bf16, different samples would get the same score. It has few columns, so it costs next to nothing.
    pub(crate) fn precision_of(&self, activate: bool) -> Precision {
        if activate { self.precision } else { Precision::F32 }
    }

    /// For each layer: weight, bias, and whether it is a hidden one.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&Tensor, &Tensor, bool)> {
        let hidden = self.norms.len();
        self.layers.iter().enumerate().map(move |(index, layer)| (&layer.weight, &layer.bias, index < hidden))
    }

    /// `[batch, inputs]` to `[batch, last width]`. Drops units of hidden layers in training.
    pub(crate) fn forward<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        let mut x = input.shallow_clone();
        for index in 0..self.layers.len() {
            x = self.layer(index, &x, calls)?;
            if index < self.norms.len() {
                x = calls.drop_units(x)?;
            }
        }
        Ok(x)
    }

    /// As [`Self::forward`], but keeps all units.
    pub(crate) fn forward_keeping<'n>(
        &'n self,
        input: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        (0..self.layers.len()).try_fold(input.shallow_clone(), |x, index| self.layer(index, &x, calls))
    }

    /// A layer, with norm and activation if it is a hidden one.
    fn layer<'n>(&'n self, index: usize, x: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        let (layer, hidden) = (&self.layers[index], self.norms.get(index));
        let precision = self.precision_of(hidden.is_some());
        let product = move |x: &Tensor| linear(x, &layer.weight, &layer.bias, precision);
        let Some(norm) = hidden else { return calls.layer(layer.layer, [x], move |[x]| product(x)) };
        let activation = &self.activations[index];
        let activated = match norm.layer() {
            None => calls.layer(layer.layer, [x], move |[x]| activation.apply_plain(product(x)?))?,
            Some(place) => {
                let sums = calls.layer(layer.layer, [x], move |[x]| product(x))?;
                calls.layer(place, [&sums], move |[sums]| activation.apply_plain(norm.forward(sums)?))?
            }
        };
        match activation {
            HiddenActivation::Plain(_) => Ok(activated),
            HiddenActivation::Dice(dice) => calls.layer(dice.layer, [&activated], |[x]| dice.forward(x, None)),
        }
    }

    pub(crate) fn first_layer(&self) -> LayerNumber {
        self.layers.first().map_or(0, |layer| layer.layer)
    }

    /// As [`Self::forward_keeping`], with a function of the number of a layer and its sums in place of norm and activation. All layers'
    /// weights are there.
    pub(crate) fn forward_by(
        &self,
        input: &Tensor,
        mut activation: impl FnMut(usize, Tensor) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, ModelError> {
        let mut x = input.shallow_clone();
        for (index, (weight, bias, activate)) in self.parts().enumerate() {
            x = linear(&x, weight, bias, self.precision_of(activate))?;
            if activate {
                x = activation(index, x)?;
            }
        }
        Ok(x)
    }
}

/// x·Wᵀ + b, the product in the wanted precision, the sum in f32.
fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor, precision: Precision) -> Result<Tensor, ModelError> {
    Ok(match precision {
        Precision::F32 => x.f_linear(weight, Some(bias))?,
        Precision::Bf16 => in_half(x, weight, bias, Kind::BFloat16)?,
        Precision::F16 => in_half(x, weight, bias, Kind::Half)?,
    })
}

/// If the processor has no units for `kind`, the product is one of f32 with the digits and range of `kind`.
fn in_half(x: &Tensor, weight: &Tensor, bias: &Tensor, kind: Kind) -> Result<Tensor, ModelError> {
    let factors = if x.device() != Device::Cpu || has_units(kind) { kind } else { Kind::Float };
    let half = |tensor: &Tensor| tensor.f_to_kind(kind)?.f_to_kind(factors);
    let product = half(x)?.f_mm(&half(weight)?.f_tr()?)?;
    Ok(product.f_to_kind(kind)?.f_to_kind(Kind::Float)?.f_add(bias)?)
}

fn stack(
    name: &str,
    inputs: usize,
    widths: &[usize],
    weights: &mut WeightBuilder,
) -> Result<Vec<LinearLayer>, ModelError> {
    let mut layers = Vec::with_capacity(widths.len());
    let mut inputs = inputs;
    for (index, width) in widths.iter().enumerate() {
        layers.push(weights.linear(name, index, inputs, *width)?);
        inputs = *width;
    }
    Ok(layers)
}

/// The job's widths. The loader has checked that they are positive.
pub(crate) fn parse_widths(job: &[i64]) -> Result<Vec<usize>, ModelError> {
    let width = |width: &i64| usize::try_from(*width).ok().filter(|width| *width > 0);
    let what = "a hidden layer of the network has no units";
    job.iter().map(|w| width(w).ok_or(ModelError::Shape { what })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_of_zero_is_refused() {
        assert!(parse_widths(&[64, 0]).is_err());
        assert_eq!(parse_widths(&[64, 1]).unwrap(), [64, 1]);
    }
}
