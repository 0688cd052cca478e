//! Wide & Deep: "Wide & Deep Learning for Recommender Systems", Cheng et al. 2016.
//!
//! The logit is that of a linear model over raw features plus that of a deep MLP over vectors (equation 3). The linear
//! ("wide") part has two terms: the first value of each id's row, which is the id's weight in the linear model, summed over
//! the features; and a linear layer over the numeric values. The deep part reads the other values of the rows and the
//! numeric values. A table of dim 1 is in the wide part only. The paper's cross-product transformations are such tables: a
//! column of the data names the combination. One optimiser serves all values of a row, while the paper trains the wide part
//! with another one.

use tch::{Kind, Tensor};

use crate::model::layers::{LayerCalls, LinearLayer, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError, int};

#[derive(Debug)]
pub(crate) struct WideDeep {
    /// Positions in ΣD of the rows' first values, and of the others.
    first: Tensor,
    rest: Tensor,
    /// `None` without numeric columns.
    pub(crate) wide: Option<LinearLayer>,
    pub(crate) deep: Mlp,
}

impl WideDeep {
    pub(crate) fn new(shape: &InputShape, hidden: &[i64], weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let (first, rest) = split(&shape.embeddings);
        let inputs = shape.numeric + rest.len();
        if inputs == 0 {
            return Err(ModelError::Shape { what: "the deep part has no input: no numeric feature, no dim above 1" });
        }
        let wide = (shape.numeric > 0).then(|| weights.linear("wide", 0, shape.numeric, 1)).transpose()?;
        let deep = Mlp::logit("deep", inputs, &parse_widths(hidden)?, weights)?;
        Ok(Self { first: weights.column_indices(&first)?, rest: weights.column_indices(&rest)?, wide, deep })
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let vectors = embeddings.f_index_select(1, &self.rest)?;
        let deep = self.deep.forward(&Tensor::f_cat(&[numeric, &vectors], 1)?, calls)?;
        let ids = embeddings.f_index_select(1, &self.first)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?;
        let logit = deep.f_add(&ids)?;
        match &self.wide {
            Some(wide) => Ok(logit.f_add(&wide.forward(numeric, calls)?)?),
            None => Ok(logit),
        }
    }
}

fn split(dims: &[usize]) -> (Vec<i64>, Vec<i64>) {
    let (mut first, mut rest, mut start) = (Vec::new(), Vec::new(), 0);
    for dim in dims {
        first.push(int(start));
        rest.extend((start + 1..start + dim).map(int));
        start += dim;
    }
    (first, rest)
}
