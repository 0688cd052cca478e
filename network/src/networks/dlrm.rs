//! DLRM: "Deep Learning Recommendation Model for Personalization and Recommendation Systems", Naumov et al. 2019.
//!
//! A bottom MLP maps the numeric values to a vector of the tables' dim D. The dot products of every pair of vectors (that
//! one and the features' vectors) and the vector itself are the input of a top MLP. Without numeric values there is no
//! bottom MLP, and the pairs are those of the features only.

use crate::layout::LayerDim;
use crate::wiring::{Value, Wiring, wide};

/// Hidden widths of both MLPs.
pub fn dlrm(net: &mut Wiring, bottom: &[i64], top: &[i64]) -> Value {
    let dense = bottom_vector(net, bottom);
    let interactions = net.interactions(dense);
    net.logit("top", interactions, &wide(top))
}

/// A vector of the numeric values, as long as those of features; `None` without them.
pub(super) fn bottom_vector(net: &mut Wiring, hidden: &[i64]) -> Option<Value> {
    let numbers = net.numbers()?;
    let widths = [&wide(hidden)[..], &[LayerDim::fixed(net.dim() as u64)]].concat();
    Some(net.mlp("bottom", numbers, &widths, false))
}
