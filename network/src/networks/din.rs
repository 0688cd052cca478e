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

use crate::layout::LayerDim;
use crate::settings::AttentionActivation;
use crate::wiring::{Block, Columns, Value, Wiring, fixed, size, wide};

#[derive(Clone, Copy, Debug)]
pub struct DinForm<'a> {
    /// Hidden layers of an activation unit.
    pub attention_hidden: &'a [i64],
    pub activation: AttentionActivation,
    /// Whether the weights of a sequence add up to 1.
    pub softmax: bool,
    pub hidden: &'a [i64],
}

pub fn din(net: &mut Wiring, form: DinForm<'_>) -> Value {
    let DinForm { attention_hidden, activation, softmax, hidden } = form;
    let slopes = match activation {
        AttentionActivation::Prelu => Some(("slopes", 0.25)),
        AttentionActivation::Dice => Some(("dice", 0.0)),
        AttentionActivation::Sigmoid | AttentionActivation::Relu => None,
    };
    let mut parts: Vec<Columns> = net.numbers().into_iter().chain([net.vectors()]).map(Columns::All).collect();
    for (index, pair) in net.inputs().sequences.clone().into_iter().enumerate() {
        let (dim, length) = (pair.dim as u64, pair.length as u64);
        let (name, widths) = (format!("attention_{index}"), fixed(attention_hidden));
        let block = Block::ActivationUnit {
            pair,
            hidden: widths.iter().map(|width| size(*width)).collect(),
            activation,
            softmax,
        };
        let sum = net.add_with(block, LayerDim::fixed(dim), |layout| {
            layout.one_layer(name.clone(), |layout| {
                layout.each_of(length, |layout| {
                    layout.with_plain_mlp(|layout| {
                        layout.add_mlp(&name, LayerDim::fixed(4 * dim), &widths, Some(LayerDim::fixed(1)));
                    });
                });
                for (layer, width) in widths.iter().enumerate() {
                    if let Some((stack, first)) = slopes {
                        layout.add_slopes(&format!("{stack}_{index}"), layer, *width, first);
                    }
                }
            });
            layout.count_products(2 * length * dim);
        });
        parts.push(Columns::All(sum));
    }
    let x = net.join(parts);
    net.logit("layers", x, &wide(hidden))
}
