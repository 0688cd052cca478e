//! FinalMLP: "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction", Mao et al. 2023.
//!
//! Two MLPs read the same input. A bilinear product of their outputs says how they interact:
//!
//! ```text
//!           ┌─ ⊙ 2σ(gate₁) ─ MLP ─► o₁ ─┐
//!  [x, e] ──┤                           ├─► b + w₁·o₁ + w₂·o₂ + Σ_h o₁ʰ·W_h·o₂ʰ
//!           └─ ⊙ 2σ(gate₂) ─ MLP ─► o₂ ─┘
//! ```
//!
//! o₁ʰ is part h of `heads` equal parts of o₁ (equation 9). The gates are optional (equations 2 and 3). A gate is an MLP over chosen
//! features, or a learned vector, which is what an MLP over a learned vector amounts to.

use crate::layout::{FirstValues, LayerDim, TensorRole};
use crate::wiring::{Block, Value, Wiring, fixed, size, wide};

/// Hidden layers of a gate, and the places of the input that it reads; none where its factors are learned.
#[derive(Clone, Debug)]
pub struct GateForm<'a> {
    pub hidden: &'a [i64],
    pub places: Vec<usize>,
}

pub fn finalmlp(net: &mut Wiring, streams: [(&[i64], Option<GateForm<'_>>); 2], heads: usize) -> Value {
    let x = net.all_inputs();
    let [first, second] = streams;
    let [first, second] = [("first", first), ("second", second)].map(|(name, (hidden, gate))| {
        let input = gate.map_or(x, |gate| gated(net, name, x, gate));
        net.mlp(name, input, &wide(hidden), true)
    });
    net.fusion(first, second, heads)
}

fn gated(net: &mut Wiring, stream: &str, x: Value, GateForm { hidden, places }: GateForm<'_>) -> Value {
    let (name, reads, widths) = (format!("gate_{stream}"), places.len(), fixed(hidden));
    let block = Block::Gate { input: x, places, hidden: widths.iter().map(|width| size(*width)).collect() };
    net.add_with(block, x.width, |layout| match reads {
        0 => {
            let shape = [1, x.width.size];
            layout.add_fixed(&format!("{name}.weight"), &shape, TensorRole::Scale, FirstValues::Uniform(0.01));
        }
        reads => {
            let (reads, last) = (LayerDim::fixed(reads as u64), Some(x.width));
            layout.with_plain_mlp(|layout| layout.add_mlp(&name, reads, &widths, last));
        }
    })
}
