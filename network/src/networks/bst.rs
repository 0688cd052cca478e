//! BST: "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", Chen et al. 2019.

use crate::layout::{FirstValues, LayerDim, LayoutBuilder, TensorRole};
use crate::wiring::{Columns, Value, Wiring, wide};

#[derive(Clone, Copy, Debug)]
pub struct BstForm<'a> {
    pub layers: usize,
    pub ffn: usize,
    pub hidden: &'a [i64],
}

pub fn bst(net: &mut Wiring, BstForm { layers, ffn, hidden }: BstForm<'_>) -> Value {
    let mut parts: Vec<Columns> = net.numbers().into_iter().chain([net.vectors()]).map(Columns::All).collect();
    for (index, pair) in net.inputs().sequences.clone().into_iter().enumerate() {
        let (positions, dim) = (pair.length as u64 + 1, pair.dim as u64);
        let outputs = net.by_autograd(LayerDim::fixed(positions * dim), |layout| {
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
