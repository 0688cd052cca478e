//! BST: "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", Chen et al. 2019.
//!
//! A transformer reads the values of a sequence and, as one more position, the target. Its output at each position is read by the MLP
//! beside the vectors of the features:
//!
//! ```text
//!  X = [v₁ … v_L, t] + P                     P: a learned vector for each position
//!  S = LN(X + MH(X))                         self-attention of `heads` heads, to real positions only;
//!                                            with `causal` to earlier ones (SASRec, Kang and McAuley 2018)
//!  F = LN(S + W₂·LeakyReLU(W₁·S + b₁) + b₂)  the X of the next of `layers` blocks
//!  x, e₁ … e_F, F at each position ─► MLP ─► logit
//! ```
//!
//! The output at padding is zero. The target is always there, so an empty sequence leaves a transformer of one position. The paper
//! counts positions by the time to the target; here a position is a place in the sequence.

use tch::{Device, Kind, Tensor};

use super::sequence_head::{NEVER, SequenceHead};
use super::shape::{AttentionShape, InputShape};
use crate::model::layers::{LayerCalls, LayerNorm, LayerNumber, Mlp, WeightBuilder};
use crate::model::{ModelError, int};

#[derive(Clone, Copy, Debug)]
pub(crate) struct BstForm<'a> {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) ffn: usize,
    pub(crate) causal: bool,
    pub(crate) hidden: &'a [i64],
}

#[derive(Debug)]
pub(crate) struct Bst {
    transformers: Vec<SequenceTransformer>,
    head: SequenceHead,
}

#[derive(Debug)]
struct SequenceTransformer {
    shape: AttentionShape,
    /// P, `[L + 1, D]`.
    positions: Tensor,
    positions_layer: LayerNumber,
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

impl Bst {
    pub(crate) fn new(shape: &InputShape, form: BstForm<'_>, weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        if shape.attention.is_empty() {
            return Err(ModelError::Shape { what: "bst has no sequence with a target" });
        }
        let mut transformers = Vec::with_capacity(shape.attention.len());
        for (index, pair) in shape.attention.iter().enumerate() {
            transformers.push(SequenceTransformer::new(index, *pair, form, weights)?);
        }
        let outputs = transformers.iter().map(SequenceTransformer::outputs).sum();
        Ok(Self { transformers, head: SequenceHead::new(shape, outputs, form.hidden, weights)? })
    }

    /// `[batch, numeric]` and `[batch, width]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        input: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let vectors = self.head.feature_vectors(input, calls)?;
        let mut transformed = Vec::with_capacity(self.transformers.len());
        for transformer in &self.transformers {
            transformed.push(transformer.forward(input, calls)?);
        }
        self.head.forward(numeric, vectors, transformed, calls)
    }
}

impl SequenceTransformer {
    fn new(
        index: usize,
        shape: AttentionShape,
        form: BstForm<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let (positions, dim) = (shape.sequence.sequence.length + 1, shape.sequence.dim);
        if !dim.is_multiple_of(form.heads) {
            return Err(ModelError::Shape { what: "the heads of bst do not divide the dim of a sequence" });
        }
        let positions = weights.factors(&format!("positions_{index}"), positions, dim)?;
        let positions_layer = weights.layer_of(&format!("positions_{index}.weight"));
        let mut blocks = Vec::with_capacity(form.layers);
        for layer in 0..form.layers {
            blocks.push(TransformerBlock::new(index, layer, dim, form, weights)?);
        }
        Ok(Self { shape, positions, positions_layer, blocks, causal: form.causal })
    }

    fn outputs(&self) -> usize {
        (self.shape.sequence.sequence.length + 1) * self.shape.sequence.dim
    }

    /// `[batch, width]` to the outputs of all positions, `[batch, (L + 1)·D]`.
    fn forward<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        let mut x = calls.layer(self.positions_layer, [input], |[input]| self.vectors(input))?;
        let real = self.shape.sequence.real_positions(input)?;
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
    fn vectors(&self, input: &Tensor) -> Result<Tensor, ModelError> {
        let target = self.shape.target_vector(input)?.f_unsqueeze(1)?;
        Ok(Tensor::f_cat(&[self.shape.sequence.position_vectors(input)?, target], 1)?.f_add(&self.positions)?)
    }
}

/// Whether the position of a column is later than that of the row, `[positions, positions]`.
fn later_positions(positions: i64, device: Device) -> Result<Tensor, ModelError> {
    Ok(Tensor::f_ones([positions, positions], (Kind::Bool, device))?.f_triu(1)?)
}

impl TransformerBlock {
    fn new(
        index: usize,
        layer: usize,
        dim: usize,
        form: BstForm<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let place = weights.layer_of(&format!("query_{index}.{layer}.weight"));
        let mut matrix = |name: &str| weights.matrix(&format!("{name}_{index}"), layer, dim, dim);
        Ok(Self {
            layer: place,
            query: matrix("query")?,
            key: matrix("key")?,
            value: matrix("value")?,
            mix: matrix("mix")?,
            attention_norm: weights.norm(&format!("attention_norm_{index}"), layer, dim)?,
            ffn: weights.without_layer_choices(|weights| {
                Mlp::linear_last(&format!("ffn_{index}_{layer}"), dim, &[form.ffn, dim], weights)
            })?,
            ffn_norm: weights.norm(&format!("ffn_norm_{index}"), layer, dim)?,
            heads: form.heads,
        })
    }

    /// `[batch, T, D]` to the same shape. `mask` is added to the scores of each position for each: `[batch, 1, T or 1, T]`.
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor, ModelError> {
        let s = self.attention_norm.forward(&x.f_add(&self.attend(x, mask)?)?)?;
        let size = s.size();
        let ffn = self.ffn.forward_by(&s.f_flatten(0, 1)?, |_, x| Ok(x.f_leaky_relu()?))?;
        self.ffn_norm.forward(&s.f_add(&ffn.f_reshape(size)?)?)
    }

    /// MH(x): each position takes up values of others, by how well its query fits their keys. One product makes all three, and libtorch's
    /// fused attention keeps no `[batch, heads, T, T]`.
    fn attend(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor, ModelError> {
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
