//! DIN: "Deep Interest Network for Click-Through Rate Prediction", Zhou et al. 2018.
//!
//! An activation unit weighs each value of a sequence by how much it says about the target, such as the movie that may be clicked.
//! The weighed sum is a vector beside those of the features:
//!
//! ```text
//!  eᵢ, t ─► [eᵢ, t, eᵢ − t, eᵢ ⊙ t] ─► MLP ─► aᵢ      activation unit, for each real position i
//!  x, e₁ … e_F, Σᵢ aᵢ·eᵢ ─► MLP ─► logit              (equation 3)
//! ```
//!
//! The weights are not normalised unless the job asks for a softmax: their sum says how strong the interest is. Padding has
//! weight 0, and the sum of an empty sequence is the zero vector. The input of the unit is that of the authors' implementation.

use tch::{Kind, Tensor};
use zagros_job::AttentionActivation;

use super::sequence_head::{NEVER, SequenceHead};
use super::shape::{AttentionShape, InputShape};
use crate::model::ModelError;
use crate::model::layers::{Dice, LayerCalls, Mlp, WeightBuilder, parse_widths};

#[derive(Clone, Copy, Debug)]
pub(crate) struct DinForm<'a> {
    pub(crate) attention_hidden: &'a [i64],
    pub(crate) activation: AttentionActivation,
    pub(crate) softmax: bool,
    pub(crate) hidden: &'a [i64],
}

#[derive(Debug)]
pub(crate) struct Din {
    units: Vec<ActivationUnit>,
    head: SequenceHead,
}

#[derive(Debug)]
struct ActivationUnit {
    shape: AttentionShape,
    mlp: Mlp,
    activation: UnitActivation,
    softmax: bool,
}

#[derive(Debug)]
enum UnitActivation {
    /// The slopes of each layer, `[width]`.
    Prelu(Vec<Tensor>),
    /// Of each layer.
    Dice(Vec<Dice>),
    Sigmoid,
    Relu,
}

impl Din {
    pub(crate) fn new(shape: &InputShape, form: DinForm<'_>, weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        if shape.attention.is_empty() {
            return Err(ModelError::Shape { what: "din has no sequence with a target" });
        }
        let mut units = Vec::with_capacity(shape.attention.len());
        for (index, pair) in shape.attention.iter().enumerate() {
            units.push(ActivationUnit::new(index, *pair, form, weights)?);
        }
        let sums: usize = shape.attention.iter().map(|pair| pair.sequence.dim).sum();
        Ok(Self { units, head: SequenceHead::new(shape, sums, form.hidden, weights)? })
    }

    /// `[batch, numeric]` and `[batch, width]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        input: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let vectors = self.head.feature_vectors(input, calls)?;
        let mut sums = Vec::with_capacity(self.units.len());
        for unit in &self.units {
            sums.push(calls.layer(unit.mlp.first_layer(), [input], |[input]| unit.forward(input))?);
        }
        self.head.forward(numeric, vectors, sums, calls)
    }
}

impl ActivationUnit {
    fn new(
        index: usize,
        shape: AttentionShape,
        form: DinForm<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let hidden = parse_widths(form.attention_hidden)?;
        let (name, widths) = (format!("attention_{index}"), [&hidden[..], &[1]].concat());
        let mlp = weights
            .without_layer_choices(|weights| Mlp::linear_last(&name, 4 * shape.sequence.dim, &widths, weights))?;
        let activation = match form.activation {
            AttentionActivation::Prelu => {
                let slopes =
                    |(layer, width): (usize, &usize)| weights.slopes(&format!("slopes_{index}"), layer, *width);
                UnitActivation::Prelu(hidden.iter().enumerate().map(slopes).collect::<Result<_, _>>()?)
            }
            AttentionActivation::Dice => {
                let dice = |(layer, width): (usize, &usize)| weights.dice(&format!("dice_{index}"), layer, *width);
                UnitActivation::Dice(hidden.iter().enumerate().map(dice).collect::<Result<_, _>>()?)
            }
            AttentionActivation::Sigmoid => UnitActivation::Sigmoid,
            AttentionActivation::Relu => UnitActivation::Relu,
        };
        Ok(Self { shape, mlp, activation, softmax: form.softmax })
    }

    /// `[batch, width]` to the weighed sums, `[batch, D]`.
    fn forward(&self, input: &Tensor) -> Result<Tensor, ModelError> {
        let values = self.shape.sequence.position_vectors(input)?;
        let target = self.shape.target_vector(input)?.f_unsqueeze(1)?.f_expand_as(&values)?;
        let real = self.shape.sequence.real_positions(input)?.f_to_kind(Kind::Float)?;
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
