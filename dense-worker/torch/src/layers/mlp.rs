//! Stacks of linear layers with norm, activation and dropout, and the source of their first weights.

use std::collections::HashMap;

use tch::nn::Path;
use tch::{Device, Kind, Tensor};
use zagros_job::{DenseTensor, Initializer, Job, MlpActivation, MlpNorm, MlpSettings, Precision, StreamedTensor};
use zagros_model::{first_values, has_units};

use super::hidden::{BatchNorm, Dice, HiddenActivation, HiddenNorm, LayerNorm, LentBuffers};
use super::layer_calls::{LayerCalls, LayerNumber};
use crate::error::{TorchError, TorchResult};

/// Makes the variables of a network with their first values. Those of a tensor are a function of the seed, its number and its
/// tiles, as an embedding server makes them that holds the tiles: streamed and resident weights begin with the same bits.
pub(crate) struct WeightBuilder<'a> {
    root: Path<'a>,
    seed: u64,
    tensors: HashMap<String, ListedTensor>,
    held: ValuesPlace,
    /// By layer: the variables that have no values here.
    pub(crate) streamed: Vec<Vec<Tensor>>,
    precision: Precision,
    layers: MlpSettings,
    /// The buffers of the layers so far, by name, and where their forward finds them.
    pub(crate) buffers: Vec<(String, Tensor)>,
    pub(crate) lent: LentBuffers,
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
            buffers: Vec::new(),
            lent: LentBuffers::default(),
        }
    }

    /// A variable, whose first values are as the tensor says.
    pub(crate) fn variable(&mut self, tensor: &DenseTensor) -> TorchResult<MadeTensor> {
        let sizes: Vec<i64> = tensor.shape.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect();
        let listed = self.tensors.get(&tensor.name);
        let listed = listed.ok_or(TorchError::shape("a tensor of the network is not in its list"))?;
        let made = |handle| MadeTensor { handle, layer: listed.layer, name: tensor.name.clone() };
        if self.held == ValuesPlace::AtServers {
            let handle = Tensor::f_zeros([1], (Kind::Float, Device::Cpu))?.f_expand(&sizes, false)?;
            self.streamed[listed.layer].push(handle.shallow_clone());
            return Ok(made(handle));
        }
        let values = first_values(self.seed, listed.table, listed.first, &tensor.shape);
        let (layer, name) = tensor.name.rsplit_once('.').unwrap_or(("", &tensor.name));
        let path = layer.split('.').fold(self.root.clone(), |path, part| &path / part);
        Ok(made(path.f_var_copy(name, &Tensor::f_from_slice(&values)?.f_reshape(&sizes)?)?))
    }
}

#[derive(Debug)]
pub(crate) struct MadeTensor {
    handle: Tensor,
    layer: LayerNumber,
    /// Such as `top.0.weight`.
    name: String,
}

/// The variables of a block, one after another.
pub(crate) struct BlockTensors<'m, 'w> {
    made: std::slice::Iter<'m, MadeTensor>,
    weights: &'m mut WeightBuilder<'w>,
}

impl<'m, 'w> BlockTensors<'m, 'w> {
    pub(crate) fn new(made: &'m [MadeTensor], weights: &'m mut WeightBuilder<'w>) -> Self {
        Self { made: made.iter(), weights }
    }

    fn next(&mut self) -> TorchResult<&'m MadeTensor> {
        self.made.next().ok_or(TorchError::shape("a block of the network lacks a tensor"))
    }

    /// The next variable, and the number of its layer.
    pub(crate) fn matrix(&mut self) -> TorchResult<(Tensor, LayerNumber)> {
        let MadeTensor { handle, layer, .. } = self.next()?;
        Ok((handle.shallow_clone(), *layer))
    }

    /// The next two: `[outputs, inputs]` and `[outputs]`, as PyTorch's `nn.Linear` has them.
    pub(crate) fn linear(&mut self) -> TorchResult<LinearLayer> {
        let ((weight, layer), (bias, _)) = (self.matrix()?, self.matrix()?);
        Ok(LinearLayer { weight, bias, layer })
    }

    /// The next two, `[width]` each.
    pub(crate) fn norm(&mut self) -> TorchResult<LayerNorm> {
        let ((weight, layer), (bias, _)) = (self.matrix()?, self.matrix()?);
        Ok(LayerNorm { weight, bias, layer })
    }

    /// As [`Self::norm`], with running statistics.
    fn batch_norm(&mut self) -> TorchResult<BatchNorm> {
        let weight = self.next()?;
        let (bias, _) = self.matrix()?;
        let first = self.statistics(weight)?;
        let (weight, layer) = (weight.handle.shallow_clone(), weight.layer);
        Ok(BatchNorm { weight, bias, layer, first, lent: self.weights.lent.clone() })
    }

    /// The next one, `[width]`, with running statistics.
    pub(crate) fn dice(&mut self) -> TorchResult<Dice> {
        let slopes = self.next()?;
        let first = self.statistics(slopes)?;
        let (slopes, layer) = (slopes.handle.shallow_clone(), slopes.layer);
        Ok(Dice { slopes, layer, first, lent: self.weights.lent.clone() })
    }

    /// The buffers `running_mean` of zeros and `running_var` of ones beside a tensor `[width]`. Returns the position of the first.
    fn statistics(&mut self, tensor: &MadeTensor) -> TorchResult<usize> {
        let root = &self.weights.root;
        let layer = tensor.name.rsplit_once('.').map_or("", |(layer, _)| layer);
        let path = layer.split('.').fold(root.clone(), |path, part| &path / part);
        let (width, kind) = (tensor.handle.size(), (Kind::Float, root.device()));
        let first = self.weights.buffers.len();
        for (name, values) in
            [("running_mean", Tensor::f_zeros(&width, kind)?), ("running_var", Tensor::f_ones(&width, kind)?)]
        {
            drop(path.add(name, values.shallow_clone(), false));
            self.weights.buffers.push((format!("{layer}.{name}"), values));
        }
        Ok(first)
    }

    /// What is between a hidden layer and its activation.
    fn hidden_norm(&mut self, norm: MlpNorm) -> TorchResult<Option<HiddenNorm>> {
        Ok(match norm {
            MlpNorm::None => None,
            MlpNorm::Layer => Some(HiddenNorm::Layer(self.norm()?)),
            MlpNorm::Batch => Some(HiddenNorm::Batch(self.batch_norm()?)),
        })
    }

    fn activation(&mut self, activation: MlpActivation) -> TorchResult<HiddenActivation> {
        Ok(match activation {
            MlpActivation::Dice => HiddenActivation::Dice(self.dice()?),
            activation => HiddenActivation::Plain(activation),
        })
    }

    /// Indices of columns, on the device of the weights.
    pub(crate) fn column_indices(&self, indices: &[i64]) -> TorchResult<Tensor> {
        Ok(Tensor::f_from_slice(indices)?.f_to_device(self.weights.root.device())?)
    }
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
    pub(crate) fn forward<'n>(&'n self, x: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        calls.layer(self.layer, [x], |[x]| Ok(x.f_linear(&self.weight, Some(&self.bias))?))
    }
}

/// Linear layers; norm, activation and dropout follow the hidden ones.
#[derive(Debug)]
pub(crate) struct Mlp {
    layers: Vec<LinearLayer>,
    norms: Vec<Option<HiddenNorm>>,
    activations: Vec<HiddenActivation>,
    precision: Precision,
}

impl Mlp {
    /// So many layers, of which the first `hidden` are followed by what the job chooses.
    pub(crate) fn new(layers: usize, hidden: usize, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
        Self::with_choices(layers, hidden, tensors.weights.layers, tensors)
    }

    /// Layers with an activation of their own, to which the choices of the job do not apply. The last one is not a hidden one.
    pub(crate) fn plain(layers: usize, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
        Self::with_choices(layers, layers - 1, MlpSettings::default(), tensors)
    }

    fn with_choices(
        layers: usize,
        hidden: usize,
        choices: MlpSettings,
        tensors: &mut BlockTensors<'_, '_>,
    ) -> TorchResult<Self> {
        let layers = (0..layers).map(|_| tensors.linear()).collect::<Result<_, _>>()?;
        let norms = (0..hidden).map(|_| tensors.hidden_norm(choices.norm)).collect::<Result<_, _>>()?;
        let activations = (0..hidden).map(|_| tensors.activation(choices.activation)).collect::<Result<_, _>>()?;
        Ok(Self { layers, norms, activations, precision: tensors.weights.precision })
    }

    /// Precision of a layer's products. The layer without an activation gives the logit, which stays f32: with the eight
    /// bits of a bf16, different samples would get the same score. It has few columns, so it costs next to nothing.
    fn precision_of(&self, is_hidden: bool) -> Precision {
        if is_hidden { self.precision } else { Precision::F32 }
    }

    /// `[batch, inputs]` to `[batch, last width]`. With `drops_units`, units of hidden layers are dropped in training.
    pub(crate) fn forward<'n>(
        &'n self,
        input: &Tensor,
        drops_units: bool,
        calls: &mut LayerCalls<'n>,
    ) -> TorchResult<Tensor> {
        (0..self.layers.len()).try_fold(input.shallow_clone(), |x, index| {
            let x = self.layer(index, &x, calls)?;
            if drops_units && index < self.norms.len() { calls.drop_units(x) } else { Ok(x) }
        })
    }

    /// A layer, with norm and activation if it is a hidden one.
    fn layer<'n>(&'n self, index: usize, x: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let (layer, hidden) = (&self.layers[index], self.norms.get(index));
        let precision = self.precision_of(hidden.is_some());
        let product = move |x: &Tensor| linear(x, &layer.weight, &layer.bias, precision);
        let Some(norm) = hidden else { return calls.layer(layer.layer, [x], move |[x]| product(x)) };
        let activation = &self.activations[index];
        let activated = match norm {
            None => calls.layer(layer.layer, [x], move |[x]| activation.apply_plain(product(x)?))?,
            Some(norm) => {
                let sums = calls.layer(layer.layer, [x], move |[x]| product(x))?;
                calls.layer(norm.layer(), [&sums], move |[sums]| activation.apply_plain(norm.forward(sums)?))?
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

    /// As [`Self::forward`], with a function of the number of a layer and its sums in place of norm and activation. All layers'
    /// weights are there.
    pub(crate) fn forward_by(
        &self,
        input: &Tensor,
        mut activation: impl FnMut(usize, Tensor) -> TorchResult<Tensor>,
    ) -> TorchResult<Tensor> {
        let mut x = input.shallow_clone();
        for (index, layer) in self.layers.iter().enumerate() {
            let is_hidden = index < self.norms.len();
            x = linear(&x, &layer.weight, &layer.bias, self.precision_of(is_hidden))?;
            if is_hidden {
                x = activation(index, x)?;
            }
        }
        Ok(x)
    }
}

/// x·Wᵀ + b, the product in the wanted precision, the sum in f32.
fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor, precision: Precision) -> TorchResult<Tensor> {
    Ok(match precision {
        Precision::F32 => x.f_linear(weight, Some(bias))?,
        Precision::Bf16 | Precision::F16 => in_half(x, weight, bias, precision)?,
    })
}

/// If the processor has no units for the precision, the product is one of f32 with its digits and range.
fn in_half(x: &Tensor, weight: &Tensor, bias: &Tensor, precision: Precision) -> TorchResult<Tensor> {
    let kind = if precision == Precision::Bf16 { Kind::BFloat16 } else { Kind::Half };
    let factors = if x.device() != Device::Cpu || has_units(precision) { kind } else { Kind::Float };
    let half = |tensor: &Tensor| tensor.f_to_kind(kind)?.f_to_kind(factors);
    let product = half(x)?.f_mm(&half(weight)?.f_tr()?)?;
    Ok(product.f_to_kind(kind)?.f_to_kind(Kind::Float)?.f_add(bias)?)
}
