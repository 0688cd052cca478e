//! DCN-V2: "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems",
//! Wang et al. 2021.
//!
//! x₀ is the vector of all numeric values and feature vectors. Cross layer l gives x_{l+1} = x₀ ⊙ (W_l·x_l + b_l) + x_l
//! (equation 1). W_l is a full matrix, or U_l·V_lᵀ of rank r (equation 2). In the stacked form, the deep MLP reads the
//! output of the last cross layer. In the parallel form it reads x₀, and the output layer reads both outputs (figure 1).
//! The paper's mixture of low-rank experts is not implemented.

use tch::Tensor;
use zagros_job::CrossStructure;

use crate::model::layers::{LayerCalls, LayerNumber, LinearLayer, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Dcnv2Form<'a> {
    pub(crate) cross_layers: usize,
    pub(crate) rank: Option<usize>,
    pub(crate) structure: CrossStructure,
    pub(crate) hidden: &'a [i64],
}

#[derive(Debug)]
pub(crate) struct Dcnv2 {
    pub(crate) cross: Vec<CrossMatrix>,
    /// Only hidden layers; `None` if the job has none.
    pub(crate) deep: Option<Mlp>,
    pub(crate) structure: CrossStructure,
    pub(crate) output: Mlp,
}

#[derive(Debug)]
pub(crate) enum CrossMatrix {
    Full(LinearLayer),
    /// U·(Vᵀ·x) + b.
    LowRank {
        down: Tensor,
        down_layer: LayerNumber,
        up: LinearLayer,
    },
}

impl Dcnv2 {
    pub(crate) fn new(
        shape: &InputShape,
        form: Dcnv2Form<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let width = shape.numeric + shape.width();
        if width == 0 {
            return Err(ModelError::Shape { what: "the network has no input: no numeric and no categorical feature" });
        }
        let cross = |index| CrossMatrix::new(index, width, form.rank, weights);
        let cross = (0..form.cross_layers).map(cross).collect::<Result<Vec<_>, _>>()?;
        let hidden = parse_widths(form.hidden)?;
        let last = hidden.last().copied();
        let deep = last.map(|_| Mlp::hidden("deep", width, &hidden, weights)).transpose()?;
        let read = match (form.structure, last) {
            (CrossStructure::Stacked, Some(last)) => last,
            (CrossStructure::Parallel, Some(last)) => width + last,
            (_, None) => width,
        };
        Ok(Self { cross, deep, structure: form.structure, output: Mlp::logit("output", read, &[], weights)? })
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let input = calls.part([numeric, embeddings], |both| Ok(Tensor::f_cat(&both, 1)?))?;
        let mut crossed = input.shallow_clone();
        for cross in &self.cross {
            let affine = cross.forward(&crossed, calls)?;
            let product = |[x, first, affine]: [&Tensor; 3]| Ok(x.f_add(&first.f_mul(affine)?)?);
            crossed = calls.part([&crossed, &input, &affine], product)?;
        }
        let read = match (&self.deep, self.structure) {
            (None, _) => crossed,
            (Some(deep), CrossStructure::Stacked) => deep.forward(&crossed, calls)?,
            (Some(deep), CrossStructure::Parallel) => Tensor::f_cat(&[&crossed, &deep.forward(&input, calls)?], 1)?,
        };
        self.output.forward_keeping(&read, calls)
    }
}

impl CrossMatrix {
    fn new(index: usize, width: usize, rank: Option<usize>, weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let Some(rank) = rank else { return Ok(Self::Full(weights.linear("cross", index, width, width)?)) };
        let down = weights.matrix("cross_down", index, width, rank)?;
        let down_layer = weights.layer_of(&format!("cross_down.{index}.weight"));
        Ok(Self::LowRank { down, down_layer, up: weights.linear("cross_up", index, rank, width)? })
    }

    fn forward<'n>(&'n self, x: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        match self {
            Self::Full(matrix) => matrix.forward(x, calls),
            Self::LowRank { down, down_layer, up } => {
                let hidden = calls.layer(*down_layer, [x], |[x]| Ok(x.f_linear(down, None::<&Tensor>)?))?;
                up.forward(&hidden, calls)
            }
        }
    }
}
