//! DCN-V2: "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems",
//! Wang et al. 2021.
//!
//! x₀ is the vector of all numeric values and feature vectors. Cross layer l gives x_{l+1} = x₀ ⊙ (W_l·x_l + b_l) + x_l
//! (equation 1). W_l is a full matrix, or U_l·V_lᵀ of rank r (equation 2). In the stacked form, the deep MLP reads the
//! output of the last cross layer. In the parallel form it reads x₀, and the output layer reads both outputs (figure 1).
//! The paper's mixture of low-rank experts is not implemented.

use crate::settings::CrossStructure;
use crate::wiring::{Columns, Value, Wiring, wide};

pub fn dcnv2(net: &mut Wiring, layers: usize, rank: Option<usize>, structure: CrossStructure, hidden: &[i64]) -> Value {
    let x = net.all_inputs();
    let crossed = net.cross(x, layers, rank);
    let read = match structure {
        CrossStructure::Parallel if !hidden.is_empty() => {
            let deep = net.mlp("deep", x, &wide(hidden), true);
            net.join(vec![Columns::All(crossed), Columns::All(deep)])
        }
        CrossStructure::Parallel | CrossStructure::Stacked => net.mlp("deep", crossed, &wide(hidden), true),
    };
    net.logit("output", read, &[])
}
