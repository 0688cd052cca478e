//! What networks make of a sequence and its target: DIN's activation unit (Zhou et al. 2018) and BST's transformer (Chen et al. 2019).

use tch::{Device, Kind, Tensor};
use zagros_job::AttentionActivation;
use zagros_network::wiring::SequencePair;

use crate::error::{TorchError, TorchResult};
use crate::int;
use crate::layers::{BlockTensors, Dice, LayerCalls, LayerNorm, LayerNumber, Mlp};

/// A score that leaves nothing of a position after a softmax, and stays finite.
const NEVER: f64 = -1e30;

/// The vectors of a batch's input, `[batch, L, D]`.
fn position_vectors(pair: &SequencePair, input: &Tensor) -> TorchResult<Tensor> {
    let (length, dim) = (pair.length, pair.dim);
    let values = input.f_narrow(1, int(pair.offset), int(length * dim))?;
    Ok(values.f_reshape([input.size()[0], int(length), int(dim)])?)
}

/// `[batch, L]` of bool.
fn real_positions(pair: &SequencePair, input: &Tensor) -> TorchResult<Tensor> {
    let (length, dim) = (pair.length, pair.dim);
    let count = input.f_narrow(1, int(pair.offset + length * dim), 1)?.f_detach()?;
    let position = Tensor::f_arange(int(length), (Kind::Float, input.device()))?.f_unsqueeze(0)?;
    Ok(match pair.pads_left {
        false => position.f_lt_tensor(&count)?,
        true => position.f_add(&count)?.f_ge(length as f64)?,
    })
}

/// The target's vector, `[batch, D]`.
fn target_vector(pair: &SequencePair, input: &Tensor) -> TorchResult<Tensor> {
    Ok(input.f_narrow(1, int(pair.target), int(pair.dim))?)
}

#[derive(Debug)]
pub(super) struct ActivationUnit {
    pair: SequencePair,
    mlp: Mlp,
    activation: UnitActivation,
    softmax: bool,
}

#[derive(Debug)]
enum UnitActivation {
    /// The slopes of each layer, `[width]`.
    Prelu(Vec<Tensor>),
    Dice(Vec<Dice>),
    Sigmoid,
    Relu,
}

impl ActivationUnit {
    /// With so many hidden layers.
    pub(super) fn new(
        pair: SequencePair,
        (hidden, activation, softmax): (usize, AttentionActivation, bool),
        tensors: &mut BlockTensors<'_, '_>,
    ) -> TorchResult<Self> {
        let mlp = Mlp::plain(hidden + 1, tensors)?;
        let activation = match activation {
            AttentionActivation::Prelu => {
                let slopes = (0..hidden).map(|_| Ok::<_, TorchError>(tensors.matrix()?.0)).collect::<Result<_, _>>()?;
                UnitActivation::Prelu(slopes)
            }
            AttentionActivation::Dice => {
                UnitActivation::Dice((0..hidden).map(|_| tensors.dice()).collect::<Result<_, _>>()?)
            }
            AttentionActivation::Sigmoid => UnitActivation::Sigmoid,
            AttentionActivation::Relu => UnitActivation::Relu,
        };
        Ok(Self { pair, mlp, activation, softmax })
    }

    pub(super) fn layer(&self) -> LayerNumber {
        self.mlp.first_layer()
    }

    /// `[batch, width]` to the weighed sums, `[batch, D]`.
    pub(super) fn forward(&self, input: &Tensor) -> TorchResult<Tensor> {
        let values = position_vectors(&self.pair, input)?;
        let target = target_vector(&self.pair, input)?.f_unsqueeze(1)?.f_expand_as(&values)?;
        let real = real_positions(&self.pair, input)?.f_to_kind(Kind::Float)?;
        let of_positions = real.f_reshape([-1, 1])?;
        let both = [&values, &target, &values.f_sub(&target)?, &values.f_mul(&target)?];
        let scores = self.mlp.forward_by(&Tensor::f_cat(&both, 2)?.f_flatten(0, 1)?, |layer, x| {
            Ok(match &self.activation {
                UnitActivation::Prelu(slopes) => x.f_prelu(&slopes[layer])?,
                UnitActivation::Dice(dice) => dice[layer].forward(&x, Some(&of_positions))?,
                UnitActivation::Sigmoid => x.f_sigmoid()?,
                UnitActivation::Relu => x.f_relu()?,
            })
        })?;
        let scores = scores.f_reshape(real.size())?;
        let scores = match self.softmax {
            true => scores.f_masked_fill(&real.f_logical_not()?, NEVER)?.f_softmax(1, Kind::Float)?,
            false => scores,
        };
        let weights = scores.f_mul(&real)?;
        Ok(weights.f_unsqueeze(1)?.f_bmm(&values)?.f_squeeze_dim(1)?)
    }
}

#[derive(Debug)]
pub(super) struct SequenceTransformer {
    pair: SequencePair,
    /// P, `[L + 1, D]`, and the number of its layer.
    positions: (Tensor, LayerNumber),
    blocks: Vec<TransformerBlock>,
    /// Whether a position attends only to itself and earlier ones.
    causal: bool,
}

#[derive(Debug)]
struct TransformerBlock {
    layer: LayerNumber,
    /// `[D, D]` each.
    query: Tensor,
    key: Tensor,
    value: Tensor,
    /// W^H, `[D, D]`: mixes the heads.
    mix: Tensor,
    attention_norm: LayerNorm,
    ffn: Mlp,
    ffn_norm: LayerNorm,
    heads: usize,
}

impl SequenceTransformer {
    pub(super) fn new(
        pair: SequencePair,
        layers: usize,
        (heads, causal): (usize, bool),
        tensors: &mut BlockTensors<'_, '_>,
    ) -> TorchResult<Self> {
        if !pair.dim.is_multiple_of(heads) {
            return Err(TorchError::shape("the heads of bst do not divide the dim of a sequence"));
        }
        let positions = tensors.matrix()?;
        let blocks = (0..layers).map(|_| TransformerBlock::new(heads, tensors)).collect::<Result<_, _>>()?;
        Ok(Self { pair, positions, blocks, causal })
    }

    /// `[batch, width]` to the outputs of all positions, `[batch, (L + 1)·D]`.
    pub(super) fn forward<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let mut x = calls.layer(self.positions.1, [input], |[input]| self.vectors(input))?;
        let real = real_positions(&self.pair, input)?;
        let always = Tensor::f_ones([input.size()[0], 1], (Kind::Bool, input.device()))?;
        let real = Tensor::f_cat(&[real, always], 1)?;
        let padding = real.f_logical_not()?.f_unsqueeze(1)?.f_unsqueeze(1)?;
        let hidden = match self.causal {
            true => padding.f_logical_or(&later_positions(x.size()[1], x.device())?)?,
            false => padding,
        };
        // Added to the scores. Not −∞: with left padding, a position of a causal transformer may attend to nothing.
        let mask = hidden.f_to_kind(Kind::Float)?.f_mul_scalar(NEVER)?;
        for block in &self.blocks {
            x = calls.layer(block.layer, [&x, &mask], |[x, mask]| block.forward(x, mask))?;
        }
        Ok(x.f_mul(&real.f_to_kind(Kind::Float)?.f_unsqueeze(2)?)?.f_flatten(1, 2)?)
    }

    /// The first X, `[batch, L + 1, D]`.
    fn vectors(&self, input: &Tensor) -> TorchResult<Tensor> {
        let target = target_vector(&self.pair, input)?.f_unsqueeze(1)?;
        Ok(Tensor::f_cat(&[position_vectors(&self.pair, input)?, target], 1)?.f_add(&self.positions.0)?)
    }
}

/// Whether the position of a column is later than that of the row, `[positions, positions]`.
fn later_positions(positions: i64, device: Device) -> TorchResult<Tensor> {
    Ok(Tensor::f_ones([positions, positions], (Kind::Bool, device))?.f_triu(1)?)
}

impl TransformerBlock {
    fn new(heads: usize, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
        let (query, layer) = tensors.matrix()?;
        let mut matrix = || Ok::<_, TorchError>(tensors.matrix()?.0);
        let (key, value, mix) = (matrix()?, matrix()?, matrix()?);
        Ok(Self {
            layer,
            query,
            key,
            value,
            mix,
            attention_norm: tensors.norm()?,
            ffn: Mlp::plain(2, tensors)?,
            ffn_norm: tensors.norm()?,
            heads,
        })
    }

    /// `[batch, T, D]` to the same shape. `mask` is added to the scores of each position for each: `[batch, 1, T or 1, T]`.
    fn forward(&self, x: &Tensor, mask: &Tensor) -> TorchResult<Tensor> {
        let s = self.attention_norm.forward(&x.f_add(&self.attend(x, mask)?)?)?;
        let size = s.size();
        let ffn = self.ffn.forward_by(&s.f_flatten(0, 1)?, |_, x| Ok(x.f_leaky_relu()?))?;
        self.ffn_norm.forward(&s.f_add(&ffn.f_reshape(size)?)?)
    }

    /// MH(x): each position takes up values of others, by how well its query fits their keys. One product makes all three, and libtorch's
    /// fused attention keeps no `[batch, heads, T, T]`.
    fn attend(&self, x: &Tensor, mask: &Tensor) -> TorchResult<Tensor> {
        let (size, heads) = (x.size(), int(self.heads));
        let matrices = Tensor::f_cat(&[&self.query, &self.key, &self.value], 0)?;
        let all = x.f_linear(&matrices, None::<&Tensor>)?;
        let part = |index: i64| {
            let part = all.f_narrow(2, index * size[2], size[2])?;
            part.f_reshape([size[0], size[1], heads, size[2] / heads])?.f_transpose(1, 2)
        };
        let attended = Tensor::f_scaled_dot_product_attention(
            &part(0)?,
            &part(1)?,
            &part(2)?,
            Some(mask),
            0.0,
            false,
            None,
            false,
        )?;
        Ok(attended.f_transpose(1, 2)?.f_reshape(&size[..])?.f_linear(&self.mix, None::<&Tensor>)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_finds_its_vectors_and_its_real_positions() {
        // The vector of two values, three positions of one value, and their number; samples with 0, 1 and 3 real positions.
        let input = Tensor::from_slice(&[
            9.0_f32, 9.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 5.0, 0.0, 0.0, 1.0, 9.0, 9.0, 1.0, 2.0, 3.0, 3.0,
        ])
        .reshape([3, 6]);
        let pair = |pads_left| SequencePair { offset: 2, dim: 1, length: 3, pads_left, target: 0 };
        let real =
            |pads_left| Vec::<bool>::try_from(real_positions(&pair(pads_left), &input).unwrap().reshape([-1])).unwrap();
        assert_eq!(real(false), [false, false, false, true, false, false, true, true, true]);
        assert_eq!(real(true), [false, false, false, false, false, true, true, true, true]);
        let vectors = position_vectors(&pair(false), &input).unwrap();
        assert_eq!(vectors.size(), [3, 3, 1]);
        assert_eq!(Vec::<f32>::try_from(vectors.reshape([-1])).unwrap(), [0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    }
}
