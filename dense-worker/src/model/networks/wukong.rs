//! Wukong: "Wukong: Towards a Scaling Law for Large-Scale Recommendation", Zhang et al. 2024.
//!
//! The input is a matrix X₀ of one vector per categorical feature, and one that a bottom MLP makes of the numeric values.
//! Each layer makes a matrix of `fmb` + `lcb` vectors of the same dim D:
//!
//! ```text
//!              ┌─ X·Xᵀ·Y ─ flatten ─ layer norm ─ MLP ─► fmb vectors   factorisation machine block
//!  X (n × D) ──┼─ W·X ─────────────────────────────────► lcb vectors   linear compress block
//!              └─ X, or V·X if n ≠ fmb + lcb ──────────► added to both
//!                                          layer norm of each vector ─► the next X
//! ```
//!
//! X·Xᵀ holds the dot products of every two vectors. Y (n × `rank`) keeps `rank` columns of it, so the block's cost grows
//! linearly with n. The interactions double in order with each layer: layer l holds products of up to 2^l features. The
//! paper's variant in which Y depends on the sample is not built.

use tch::Tensor;

use crate::model::layers::{LayerCalls, LayerNorm, LayerNumber, Mlp, WeightBuilder, parse_widths};
use crate::model::{InputShape, ModelError, int};

#[derive(Clone, Copy, Debug)]
pub(crate) struct WukongForm<'a> {
    pub(crate) layers: usize,
    pub(crate) fmb: usize,
    pub(crate) lcb: usize,
    pub(crate) rank: usize,
    pub(crate) fmb_hidden: &'a [i64],
    pub(crate) bottom: &'a [i64],
    pub(crate) top: &'a [i64],
}

#[derive(Debug)]
pub(crate) struct Wukong {
    bottom: Option<Mlp>,
    layers: Vec<InteractionLayer>,
    top: Mlp,
    features: usize,
    dim: usize,
}

#[derive(Debug)]
struct InteractionLayer {
    /// The numbers of two layers: Y and the first norm, and all that follows the MLP.
    projected: LayerNumber,
    compressed: LayerNumber,
    /// Yᵀ, `[rank, n]`.
    projection: Tensor,
    fm_norm: LayerNorm,
    fm_mlp: Mlp,
    /// W, `[lcb, n]`.
    compress: Tensor,
    /// V, `[fmb + lcb, n]`; `None` if the layer gives as many vectors as it takes.
    residual: Option<Tensor>,
    norm: LayerNorm,
    fmb: usize,
    dim: usize,
}

impl Wukong {
    pub(crate) fn new(
        shape: &InputShape,
        form: WukongForm<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let (features, dim) = (shape.embeddings.len(), shape.common_dim("wukong")?);
        let bottom_widths = [parse_widths(form.bottom)?, vec![dim]].concat();
        let has_bottom = shape.numeric > 0;
        let bottom = has_bottom.then(|| Mlp::hidden("bottom", shape.numeric, &bottom_widths, weights)).transpose()?;
        let mut vectors = features + usize::from(has_bottom);
        let mut layers = Vec::with_capacity(form.layers);
        for index in 0..form.layers {
            layers.push(InteractionLayer::new(index, vectors, dim, form, weights)?);
            vectors = form.fmb + form.lcb;
        }
        let top = Mlp::logit("top", vectors * dim, &parse_widths(form.top)?, weights)?;
        Ok(Self { bottom, layers, top, features, dim })
    }

    /// `[batch, numeric]` and `[batch, F·D]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let mut vectors = embeddings.f_reshape([numeric.size()[0], int(self.features), int(self.dim)])?;
        if let Some(bottom) = &self.bottom {
            let dense = bottom.forward_keeping(numeric, calls)?.f_unsqueeze(1)?;
            vectors = Tensor::f_cat(&[dense, vectors], 1)?;
        }
        for layer in &self.layers {
            vectors = layer.forward(&vectors, calls)?;
        }
        self.top.forward(&vectors.f_flatten(1, 2)?, calls)
    }
}

impl InteractionLayer {
    /// Takes `vectors` vectors of `dim` values.
    fn new(
        index: usize,
        vectors: usize,
        dim: usize,
        form: WukongForm<'_>,
        weights: &mut WeightBuilder,
    ) -> Result<Self, ModelError> {
        let (given, products) = (form.fmb + form.lcb, vectors * form.rank);
        let fm_widths = [parse_widths(form.fmb_hidden)?, vec![form.fmb * dim]].concat();
        let layer = |weights: &WeightBuilder, stack: &str| weights.layer_of(&format!("{stack}.{index}.weight"));
        Ok(Self {
            projected: layer(weights, "fmb_projection"),
            compressed: layer(weights, "lcb"),
            projection: weights.matrix("fmb_projection", index, vectors, form.rank)?,
            fm_norm: weights.norm("fmb_norm", index, products)?,
            fm_mlp: Mlp::linear_last(&format!("fmb_{index}"), products, &fm_widths, weights)?,
            compress: weights.matrix("lcb", index, vectors, form.lcb)?,
            residual: (given != vectors).then(|| weights.matrix("residual", index, vectors, given)).transpose()?,
            norm: weights.norm("norm", index, dim)?,
            fmb: form.fmb,
            dim,
        })
    }

    /// `[batch, n, D]` to `[batch, fmb + lcb, D]`.
    fn forward<'n>(&'n self, x: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, ModelError> {
        let columns = calls.part([x], |[x]| Ok(x.f_transpose(1, 2)?))?;
        let products = calls.layer(self.projected, [x, &columns], |[x, columns]| self.products(x, columns))?;
        let interactions = self.fm_mlp.forward_keeping(&products, calls)?;
        match &self.residual {
            Some(matrix) => calls.layer(self.compressed, [&interactions, &columns], |[interactions, columns]| {
                self.compress(interactions, columns, |columns| compressed(columns, matrix))
            }),
            None => calls.layer(self.compressed, [x, &interactions, &columns], |[x, interactions, columns]| {
                self.compress(interactions, columns, |_| Ok(x.shallow_clone()))
            }),
        }
    }

    /// The normalised X·Xᵀ·Y, from X and Xᵀ: `[batch, n·rank]`.
    fn products(&self, x: &Tensor, columns: &Tensor) -> Result<Tensor, ModelError> {
        // X·(Xᵀ·Y): never the n × n products.
        let products = x.f_bmm(&columns.f_linear(&self.projection, None::<&Tensor>)?)?.f_flatten(1, 2)?;
        self.fm_norm.forward(&products)
    }

    /// The vectors of both blocks with what is added to them, normalised.
    fn compress(
        &self,
        interactions: &Tensor,
        columns: &Tensor,
        residual: impl FnOnce(&Tensor) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, ModelError> {
        let interactions = interactions.f_reshape([-1, int(self.fmb), int(self.dim)])?;
        let both = Tensor::f_cat(&[interactions, compressed(columns, &self.compress)?], 1)?;
        self.norm.forward(&both.f_add(&residual(columns)?)?)
    }
}

/// W·X from Xᵀ: (W·X)ᵀ = Xᵀ·Wᵀ.
fn compressed(columns: &Tensor, matrix: &Tensor) -> Result<Tensor, ModelError> {
    Ok(columns.f_linear(matrix, None::<&Tensor>)?.f_transpose(1, 2)?)
}
