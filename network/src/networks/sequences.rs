//! Networks over sequences of vectors and the targets that they are compared with.
//!
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
//!
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

use crate::layout::{FirstValues, LayerDim, LayoutBuilder, TensorRole};
use crate::settings::AttentionActivation;
use crate::wiring::{Block, Columns, Value, Wiring, fixed, size, wide};

/// With `softmax`, the weights of a sequence add up to 1.
pub fn din(
    net: &mut Wiring,
    attention_hidden: &[i64],
    activation: AttentionActivation,
    softmax: bool,
    hidden: &[i64],
) -> Value {
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

/// `ffn` are the hidden units of the feed-forward network of each position.
pub fn bst(net: &mut Wiring, layers: usize, heads: usize, ffn: usize, causal: bool, hidden: &[i64]) -> Value {
    let mut parts: Vec<Columns> = net.numbers().into_iter().chain([net.vectors()]).map(Columns::All).collect();
    for (index, pair) in net.inputs().sequences.clone().into_iter().enumerate() {
        let (positions, dim) = (pair.length as u64 + 1, pair.dim as u64);
        let transformer = Block::Transformer { pair, layers, heads, causal };
        let outputs = net.add_with(transformer, LayerDim::fixed(positions * dim), |layout| {
            let (name, first) = (format!("positions_{index}.weight"), FirstValues::Uniform(0.01));
            layout.add_fixed(&name, &[positions, dim], TensorRole::Scale, first);
            for layer in 0..layers {
                layout.one_layer(format!("query_{index}.{layer}"), |layout| {
                    layout.each_of(positions, |layout| {
                        transformer_layer(layout, (index, layer), LayerDim::fixed(dim), ffn)
                    });
                });
                // Queries with keys, and their shares with values.
                layout.count_products(2 * positions * positions * dim);
            }
        });
        parts.push(Columns::All(outputs));
    }
    let x = net.join(parts);
    net.logit("layers", x, &wide(hidden))
}

fn transformer_layer(layout: &mut LayoutBuilder, (index, layer): (usize, usize), dim: LayerDim, ffn: usize) {
    for name in ["query", "key", "value", "mix"] {
        layout.add_matrix(&format!("{name}_{index}"), layer, dim, dim);
    }
    layout.add_norm(&format!("attention_norm_{index}"), layer, dim);
    let hidden = [LayerDim::fixed(ffn as u64)];
    layout.with_plain_mlp(|layout| layout.add_mlp(&format!("ffn_{index}_{layer}"), dim, &hidden, Some(dim)));
    layout.add_norm(&format!("ffn_norm_{index}"), layer, dim);
}
