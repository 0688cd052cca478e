//! DeepFM: "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", Guo et al. 2017.
//!
//! The logit is ⟨w, x⟩ + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j (equation 2) plus a deep MLP over all fields' vectors v_i x_i. An id is
//! a feature with value 1. Its row on the embedding servers holds both of its parameters: the first value is w_i, the
//! others are v_i. The first-order term is therefore looked up, learned and stored like any other value of a row, and a
//! table of dim D has D − 1 factors. A field with several ids pools their rows, including their first-order weights.
//! Numeric column i has its w_i and v_i in the dense network.

use crate::wiring::{Value, Wiring, wide};

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
