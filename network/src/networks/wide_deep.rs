//! Wide & Deep: "Wide & Deep Learning for Recommender Systems", Cheng et al. 2016.
//!
//! The logit is that of a linear model over raw features plus that of a deep MLP over vectors (equation 3). The linear
//! ("wide") part has two terms: the first value of each id's row, which is the id's weight in the linear model, summed over
//! the features; and a linear layer over the numeric values. The deep part reads the other values of the rows and the
//! numeric values. A table of dim 1 is in the wide part only. The paper's cross-product transformations are such tables: a
//! column of the data names the combination. One optimiser serves all values of a row, while the paper trains the wide part
//! with another one.

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
