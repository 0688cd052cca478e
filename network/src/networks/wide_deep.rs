//! Wide & Deep: "Wide & Deep Learning for Recommender Systems", Cheng et al. 2016.
//!
//! The logit is that of a linear model plus that of a deep MLP. The first value of an id's row is its weight in the linear
//! model, the others are its vector in the MLP. Numeric values are read by both.

use crate::wiring::{Columns, Value, Wiring, wide};

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
