//! A layer of Wukong: a factorisation machine block and a linear compress block.

use tch::Tensor;
use zagros_network::wiring::FactorLayer;

use crate::error::TorchError;
use crate::int;
use crate::layers::{BlockTensors, LayerCalls, LayerNorm, LayerNumber, Mlp};

#[derive(Debug)]
pub(super) struct InteractionLayer {
    /// Yᵀ, `[rank, n]`, and the number of the layer of Y and the first norm.
    projection: (Tensor, LayerNumber),
    fm_norm: LayerNorm,
    fm_mlp: Mlp,
    /// W, `[lcb, n]`, and the number of the layer of all that follows the MLP.
    compress: (Tensor, LayerNumber),
    /// V, `[fmb + lcb, n]`; `None` if the layer gives as many vectors as it takes.
    residual: Option<Tensor>,
    norm: LayerNorm,
    fmb: usize,
    dim: usize,
}

impl InteractionLayer {
    pub(super) fn new(layer: &FactorLayer, tensors: &mut BlockTensors<'_, '_>) -> Result<Self, TorchError> {
        let FactorLayer { vectors, dim, fmb, lcb, widths, .. } = layer;
        Ok(Self {
            projection: tensors.matrix()?,
            fm_norm: tensors.norm()?,
            fm_mlp: Mlp::new(widths.len(), widths.len() - 1, tensors)?,
            compress: tensors.matrix()?,
            residual: (fmb + lcb != *vectors).then(|| Ok::<_, TorchError>(tensors.matrix()?.0)).transpose()?,
            norm: tensors.norm()?,
            fmb: *fmb,
            dim: *dim,
        })
    }

    /// `[batch, n · D]` to `[batch, (fmb + lcb) · D]`.
    pub(super) fn forward<'n>(&'n self, x: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, TorchError> {
        let x = &x.f_reshape([x.size()[0], -1, int(self.dim)])?;
        let columns = calls.part([x], |[x]| Ok(x.f_transpose(1, 2)?))?;
        let products = calls.layer(self.projection.1, [x, &columns], |[x, columns]| self.products(x, columns))?;
        let interactions = self.fm_mlp.forward_keeping(&products, calls)?;
        let vectors = match &self.residual {
            Some(matrix) => calls.layer(self.compress.1, [&interactions, &columns], |[interactions, columns]| {
                self.compress(interactions, columns, |columns| compressed(columns, matrix))
            }),
            None => calls.layer(self.compress.1, [x, &interactions, &columns], |[x, interactions, columns]| {
                self.compress(interactions, columns, |_| Ok(x.shallow_clone()))
            }),
        };
        Ok(vectors?.f_flatten(1, 2)?)
    }

    /// The normalised X·Xᵀ·Y, from X and Xᵀ: `[batch, n·rank]`.
    fn products(&self, x: &Tensor, columns: &Tensor) -> Result<Tensor, TorchError> {
        // X·(Xᵀ·Y): never the n × n products.
        let products = x.f_bmm(&columns.f_linear(&self.projection.0, None::<&Tensor>)?)?.f_flatten(1, 2)?;
        self.fm_norm.forward(&products)
    }

    /// The vectors of both blocks with what is added to them, normalised.
    fn compress(
        &self,
        interactions: &Tensor,
        columns: &Tensor,
        residual: impl FnOnce(&Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Tensor, TorchError> {
        let interactions = interactions.f_reshape([-1, int(self.fmb), int(self.dim)])?;
        let both = Tensor::f_cat(&[interactions, compressed(columns, &self.compress.0)?], 1)?;
        self.norm.forward(&both.f_add(&residual(columns)?)?)
    }
}

/// W·X from Xᵀ: (W·X)ᵀ = Xᵀ·Wᵀ.
fn compressed(columns: &Tensor, matrix: &Tensor) -> Result<Tensor, TorchError> {
    Ok(columns.f_linear(matrix, None::<&Tensor>)?.f_transpose(1, 2)?)
}
