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
use crate::wiring::{Block, Columns, Value, Wiring, wide};

#[derive(Clone, Copy, Debug)]
pub struct BstForm<'a> {
    pub layers: usize,
    pub heads: usize,
    /// Hidden units of the feed-forward network of each position.
    pub ffn: usize,
    /// Whether a position attends only to itself and earlier ones.
    pub causal: bool,
    pub hidden: &'a [i64],
}

pub fn bst(net: &mut Wiring, form: BstForm<'_>) -> Value {
    let BstForm { layers, heads, ffn, causal, hidden } = form;
    let mut parts: Vec<Columns> = net.numbers().into_iter().chain([net.vectors()]).map(Columns::All).collect();
    for (index, pair) in net.inputs().sequences.clone().into_iter().enumerate() {
        let (positions, dim) = (pair.length as u64 + 1, pair.dim as u64);
        let transformer = Block::Transformer { pair, layers, heads, causal };
        let outputs = net.add_with(transformer, LayerDim::fixed(positions * dim), |layout| {
            let (name, first) = (format!("positions_{index}.weight"), FirstValues::Uniform(0.01));
            layout.add_fixed(&name, &[positions, dim], TensorRole::Scale, first);
            for layer in 0..layers {
                layout.one_layer(format!("query_{index}.{layer}"), |layout| {
                    layout.each_of(positions, |layout| block(layout, (index, layer), LayerDim::fixed(dim), ffn));
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

fn block(layout: &mut LayoutBuilder, (index, layer): (usize, usize), dim: LayerDim, ffn: usize) {
    for name in ["query", "key", "value", "mix"] {
        layout.add_matrix(&format!("{name}_{index}"), layer, dim, dim);
    }
    layout.add_norm(&format!("attention_norm_{index}"), layer, dim);
    let hidden = [LayerDim::fixed(ffn as u64)];
    layout.with_plain_mlp(|layout| layout.add_mlp(&format!("ffn_{index}_{layer}"), dim, &hidden, Some(dim)));
    layout.add_norm(&format!("ffn_norm_{index}"), layer, dim);
}
