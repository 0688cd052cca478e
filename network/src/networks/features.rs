//! Networks over the values of features side by side, one value or vector of each.
//!
//! FFNN: a feed-forward network over all features side by side.
//!
//! DLRM: "Deep Learning Recommendation Model for Personalization and Recommendation Systems", Naumov et al. 2019.
//!
//! A bottom MLP maps the numeric values to a vector of the tables' dim D. The dot products of every pair of vectors (that
//! one and the features' vectors) and the vector itself are the input of a top MLP. Without numeric values there is no
//! bottom MLP, and the pairs are those of the features only.
//!
//! DCN-V2: "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems",
//! Wang et al. 2021.
//!
//! x₀ is the vector of all numeric values and feature vectors. Cross layer l gives x_{l+1} = x₀ ⊙ (W_l·x_l + b_l) + x_l
//! (equation 1). W_l is a full matrix, or U_l·V_lᵀ of rank r (equation 2). In the stacked form, the deep MLP reads the
//! output of the last cross layer. In the parallel form it reads x₀, and the output layer reads both outputs (figure 1).
//! The paper's mixture of low-rank experts is not implemented.
//!
//! DeepFM: "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", Guo et al. 2017.
//!
//! The logit is ⟨w, x⟩ + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j (equation 2) plus a deep MLP over all fields' vectors v_i x_i. An id is
//! a feature with value 1. Its row on the embedding servers holds both of its parameters: the first value is w_i, the
//! others are v_i. The first-order term is therefore looked up, learned and stored like any other value of a row, and a
//! table of dim D has D − 1 factors. A field with several ids pools their rows, including their first-order weights.
//! Numeric column i has its w_i and v_i in the dense network.
//!
//! Wide & Deep: "Wide & Deep Learning for Recommender Systems", Cheng et al. 2016.
//!
//! The logit is that of a linear model over raw features plus that of a deep MLP over vectors (equation 3). The linear
//! ("wide") part has two terms: the first value of each id's row, which is the id's weight in the linear model, summed over
//! the features; and a linear layer over the numeric values. The deep part reads the other values of the rows and the
//! numeric values. A table of dim 1 is in the wide part only. The paper's cross-product transformations are such tables: a
//! column of the data names the combination. One optimiser serves all values of a row, while the paper trains the wide part
//! with another one.

use crate::layout::LayerDim;
use crate::settings::CrossStructure;
use crate::wiring::{Columns, Value, Wiring, wide};

pub fn ffnn(net: &mut Wiring, hidden: &[i64]) -> Value {
    let x = net.all_inputs();
    net.logit("layers", x, &wide(hidden))
}

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

pub fn deepfm(net: &mut Wiring, hidden: &[i64]) -> Value {
    let of_numbers = net.numbers().map(|numbers| net.linear_term("first_order", numbers));
    let fields = net.factor_fields();
    let (first, second) = (net.first_values(), net.second_order(fields));
    let deep = net.logit("deep", fields, &wide(hidden));
    let mut terms = net.sum(vec![first, second]);
    if let Some(of_numbers) = of_numbers {
        terms = net.sum(vec![terms, of_numbers]);
    }
    net.sum(vec![deep, terms])
}

pub fn wide_deep(net: &mut Wiring, hidden: &[i64]) -> Value {
    let (numbers, vectors) = (net.numbers(), net.vectors());
    let of_numbers = numbers.map(|numbers| net.linear_term("wide", numbers));
    let mut terms = net.first_values();
    let parts = numbers.into_iter().map(Columns::All).chain([Columns::WithoutFirst(vectors)]).collect();
    let x = net.join(parts);
    let deep = net.logit("deep", x, &wide(hidden));
    if let Some(of_numbers) = of_numbers {
        terms = net.sum(vec![terms, of_numbers]);
    }
    net.sum(vec![deep, terms])
}
