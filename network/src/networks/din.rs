//! DIN: "Deep Interest Network for Click-Through Rate Prediction", Zhou et al. 2018.

use crate::layout::LayerDim;
use crate::settings::AttentionActivation;
use crate::wiring::{Columns, Value, Wiring, fixed, wide};

pub fn din(net: &mut Wiring, attention_hidden: &[i64], activation: AttentionActivation, hidden: &[i64]) -> Value {
    let slopes = match activation {
        AttentionActivation::Prelu => Some(("slopes", 0.25)),
        AttentionActivation::Dice => Some(("dice", 0.0)),
        AttentionActivation::Sigmoid | AttentionActivation::Relu => None,
    };
    let mut parts: Vec<Columns> = net.numbers().into_iter().chain([net.vectors()]).map(Columns::All).collect();
    for (index, pair) in net.inputs().sequences.clone().into_iter().enumerate() {
        let (dim, length) = (pair.dim as u64, pair.length as u64);
        let (name, widths) = (format!("attention_{index}"), fixed(attention_hidden));
        let sum = net.by_autograd(LayerDim::fixed(dim), |layout| {
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
