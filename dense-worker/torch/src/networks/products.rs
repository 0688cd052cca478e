//! Blocks that multiply values of a sample with each other: cross layers of DCN-V2 (Wang et al. 2021, equations 1 and 2), fields of a
//! factorisation machine and the products of all pairs of them, layers of Wukong, and the gates and the bilinear product of FinalMLP's
//! streams (Mao et al. 2023).

use tch::{Kind, Tensor};
use zagros_network::wiring::FactorLayer;

use crate::error::{TorchError, TorchResult};
use crate::int;
use crate::layers::{BlockTensors, LayerCalls, LayerNorm, LayerNumber, LinearLayer, Mlp};

#[derive(Debug)]
pub(super) enum CrossMatrix {
    Full(LinearLayer),
    /// U·(Vᵀ·x) + b.
    LowRank {
        down: Tensor,
        down_layer: LayerNumber,
        up: LinearLayer,
    },
}

impl CrossMatrix {
    pub(super) fn new(is_low_rank: bool, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
        if !is_low_rank {
            return Ok(Self::Full(tensors.linear()?));
        }
        let (down, down_layer) = tensors.matrix()?;
        Ok(Self::LowRank { down, down_layer, up: tensors.linear()? })
    }

    /// x₀ ⊙ (W·x + b) + x.
    pub(super) fn forward<'n>(&'n self, first: &Tensor, x: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let affine = match self {
            Self::Full(matrix) => matrix.forward(x, calls)?,
            Self::LowRank { down, down_layer, up } => {
                let hidden = calls.layer(*down_layer, [x], |[x]| Ok(x.f_linear(down, None::<&Tensor>)?))?;
                up.forward(&hidden, calls)?
            }
        };
        let product = |[x, first, affine]: [&Tensor; 3]| Ok(x.f_add(&first.f_mul(affine)?)?);
        calls.part([x, first, &affine], product)
    }
}

/// A field of each number, the number times its factors, and one of each vector, without its first value.
#[derive(Debug)]
pub(super) struct FactorFields {
    /// Of the numbers, if there are any: `[numeric, K]`, with the number of their layer.
    pub(super) factors: Option<(Tensor, LayerNumber)>,
    pub(super) features: usize,
    pub(super) dim: usize,
}

impl FactorFields {
    /// `[batch, fields · K]`.
    pub(super) fn forward<'n>(
        &'n self,
        vectors: &Tensor,
        numbers: &[&Tensor],
        calls: &mut LayerCalls<'n>,
    ) -> TorchResult<Tensor> {
        let rows = vectors.f_reshape([-1, int(self.features), int(self.dim)])?;
        let fields = rows.f_narrow(2, 1, int(self.dim - 1))?;
        let (Some((factors, layer)), [numbers]) = (&self.factors, numbers) else { return Ok(fields.f_flatten(1, 2)?) };
        let product = |[numeric]: [&Tensor; 1]| Ok(numeric.f_unsqueeze(2)?.f_mul(factors)?);
        let columns = calls.layer(*layer, [*numbers], product)?;
        Ok(Tensor::f_cat(&[columns, fields], 1)?.f_flatten(1, 2)?)
    }
}

/// `[batch, fields · K]` to `[batch, 1]`: Σ_{i<j} ⟨f_i, f_j⟩ as ½ Σ_k ((Σ_i f_ik)² − Σ_i f_ik²), which is linear in the
/// number of fields (Rendle 2010, lemma 3.1).
pub(super) fn second_order(fields: &Tensor, factors: usize) -> TorchResult<Tensor> {
    let fields = fields.f_reshape([fields.size()[0], -1, int(factors)])?;
    let sum_squared = fields.f_sum_dim_intlist(1_i64, false, Kind::Float)?.f_square()?;
    let squares = fields.f_square()?.f_sum_dim_intlist(1_i64, false, Kind::Float)?;
    Ok(sum_squared.f_sub(&squares)?.f_sum_dim_intlist(1_i64, true, Kind::Float)?.f_mul_scalar(0.5)?)
}

/// A layer of Wukong: a factorisation machine block and a linear compress block.
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
    pub(super) fn new(layer: &FactorLayer, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
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
    pub(super) fn forward<'n>(&'n self, x: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let x = &x.f_reshape([x.size()[0], -1, int(self.dim)])?;
        let columns = calls.part([x], |[x]| Ok(x.f_transpose(1, 2)?))?;
        let products = calls.layer(self.projection.1, [x, &columns], |[x, columns]| self.products(x, columns))?;
        let interactions = self.fm_mlp.forward(&products, false, calls)?;
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
    fn products(&self, x: &Tensor, columns: &Tensor) -> TorchResult<Tensor> {
        // X·(Xᵀ·Y): never the n × n products.
        let products = x.f_bmm(&columns.f_linear(&self.projection.0, None::<&Tensor>)?)?.f_flatten(1, 2)?;
        self.fm_norm.forward(&products)
    }

    /// The vectors of both blocks with what is added to them, normalised.
    fn compress(
        &self,
        interactions: &Tensor,
        columns: &Tensor,
        residual: impl FnOnce(&Tensor) -> TorchResult<Tensor>,
    ) -> TorchResult<Tensor> {
        let interactions = interactions.f_reshape([-1, int(self.fmb), int(self.dim)])?;
        let both = Tensor::f_cat(&[interactions, compressed(columns, &self.compress.0)?], 1)?;
        self.norm.forward(&both.f_add(&residual(columns)?)?)
    }
}

/// W·X from Xᵀ: (W·X)ᵀ = Xᵀ·Wᵀ.
fn compressed(columns: &Tensor, matrix: &Tensor) -> TorchResult<Tensor> {
    Ok(columns.f_linear(matrix, None::<&Tensor>)?.f_transpose(1, 2)?)
}

#[derive(Debug)]
pub(super) enum StreamGate {
    /// `[1, width]`, and the number of its layer.
    Learned(Tensor, LayerNumber),
    OfFeatures {
        places: Tensor,
        mlp: Mlp,
    },
}

/// b + w₁·o₁ + w₂·o₂ + Σ_h o₁ʰ·W_h·o₂ʰ, for each output of the network.
#[derive(Debug)]
pub(super) struct BilinearFusion {
    of_first: LinearLayer,
    /// w₂, `[outputs, b]`.
    of_second: (Tensor, LayerNumber),
    /// W, `[outputs, heads·(a/heads)·(b/heads)]` for streams with a and b outputs.
    products: (Tensor, LayerNumber),
    heads: usize,
    outputs: usize,
}

impl StreamGate {
    /// Over these places of the input, by so many hidden layers.
    pub(super) fn new(places: &[usize], hidden: usize, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
        if places.is_empty() {
            let (logits, layer) = tensors.matrix()?;
            return Ok(Self::Learned(logits, layer));
        }
        let places: Vec<i64> = places.iter().copied().map(int).collect();
        Ok(Self::OfFeatures { places: tensors.column_indices(&places)?, mlp: Mlp::plain(hidden + 1, tensors)? })
    }

    /// `[batch, width]` to the same shape.
    pub(super) fn scaled<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let scaled = |input: &Tensor, logits: &Tensor| Ok(input.f_mul(&logits.f_sigmoid()?)?.f_mul_scalar(2.0)?);
        match self {
            Self::Learned(logits, layer) => calls.layer(*layer, [input], move |[input]| scaled(input, logits)),
            Self::OfFeatures { places, mlp } => {
                let logits = mlp.forward(&input.f_index_select(1, places)?, false, calls)?;
                calls.part([input, &logits], move |[input, logits]| scaled(input, logits))
            }
        }
    }
}

impl BilinearFusion {
    pub(super) fn new(heads: usize, outputs: usize, tensors: &mut BlockTensors<'_, '_>) -> TorchResult<Self> {
        let (of_first, of_second) = (tensors.linear()?, tensors.matrix()?);
        Ok(Self { of_first, of_second, products: tensors.matrix()?, heads, outputs })
    }

    /// `[batch, a]` and `[batch, b]` to `[batch, outputs]`.
    pub(super) fn forward<'n>(
        &'n self,
        first: &Tensor,
        second: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> TorchResult<Tensor> {
        let ((of_second, second_layer), (_, products)) = (&self.of_second, &self.products);
        let interactions =
            calls.layer(*products, [first, second], |[first, second]| self.interactions(first, second))?;
        let first = self.of_first.forward(first, calls)?;
        let second = calls.layer(*second_layer, [second], |[x]| Ok(x.f_linear(of_second, None::<&Tensor>)?))?;
        Ok(first.f_add(&second)?.f_add(&interactions)?)
    }

    fn interactions(&self, first: &Tensor, second: &Tensor) -> TorchResult<Tensor> {
        let (batch, heads, outputs) = (first.size()[0], int(self.heads), int(self.outputs));
        let (a, b) = (first.size()[1] / heads, second.size()[1] / heads);
        // [heads, a/heads, outputs·b/heads].
        let products = self.products.0.f_reshape([outputs, heads, a, b])?.f_permute([1, 2, 0, 3])?;
        let products = products.f_reshape([heads, a, outputs * b])?;
        let parts = first.f_reshape([batch, heads, a])?.f_transpose(0, 1)?;
        let left = parts.f_bmm(&products)?.f_reshape([heads, batch, outputs, b])?;
        let right = second.f_reshape([batch, heads, 1, b])?.f_transpose(0, 1)?;
        Ok(left.f_mul(&right)?.f_sum_dim_intlist([0_i64, 3].as_slice(), false, Kind::Float)?)
    }
}
