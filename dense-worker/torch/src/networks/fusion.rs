//! The gates of FinalMLP's streams, and the bilinear product of their outputs (Mao et al. 2023).

use tch::Tensor;

use crate::error::TorchError;
use crate::int;
use crate::layers::{BlockTensors, LayerCalls, LayerNumber, LinearLayer, Mlp};

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
    pub(super) fn new(places: &[usize], hidden: usize, tensors: &mut BlockTensors<'_, '_>) -> Result<Self, TorchError> {
        if places.is_empty() {
            let (logits, layer) = tensors.matrix()?;
            return Ok(Self::Learned(logits, layer));
        }
        let places: Vec<i64> = places.iter().copied().map(int).collect();
        Ok(Self::OfFeatures { places: tensors.column_indices(&places)?, mlp: Mlp::plain(hidden + 1, tensors)? })
    }

    /// `[batch, width]` to the same shape.
    pub(super) fn scaled<'n>(&'n self, input: &Tensor, calls: &mut LayerCalls<'n>) -> Result<Tensor, TorchError> {
        let scaled = |input: &Tensor, logits: &Tensor| Ok(input.f_mul(&logits.f_sigmoid()?)?.f_mul_scalar(2.0)?);
        match self {
            Self::Learned(logits, layer) => calls.layer(*layer, [input], move |[input]| scaled(input, logits)),
            Self::OfFeatures { places, mlp } => {
                let logits = mlp.forward_keeping(&input.f_index_select(1, places)?, calls)?;
                calls.part([input, &logits], move |[input, logits]| scaled(input, logits))
            }
        }
    }
}

impl BilinearFusion {
    pub(super) fn new(heads: usize, outputs: usize, tensors: &mut BlockTensors<'_, '_>) -> Result<Self, TorchError> {
        let (of_first, of_second) = (tensors.linear()?, tensors.matrix()?);
        Ok(Self { of_first, of_second, products: tensors.matrix()?, heads, outputs })
    }

    /// `[batch, a]` and `[batch, b]` to `[batch, outputs]`.
    pub(super) fn forward<'n>(
        &'n self,
        first: &Tensor,
        second: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, TorchError> {
        let ((of_second, second_layer), (_, products)) = (&self.of_second, &self.products);
        let interactions =
            calls.layer(*products, [first, second], |[first, second]| self.interactions(first, second))?;
        let first = self.of_first.forward(first, calls)?;
        let second = calls.layer(*second_layer, [second], |[x]| Ok(x.f_linear(of_second, None::<&Tensor>)?))?;
        Ok(first.f_add(&second)?.f_add(&interactions)?)
    }

    fn interactions(&self, first: &Tensor, second: &Tensor) -> Result<Tensor, TorchError> {
        let (batch, heads, outputs) = (first.size()[0], int(self.heads), int(self.outputs));
        let (a, b) = (first.size()[1] / heads, second.size()[1] / heads);
        // [heads, a/heads, outputs·b/heads].
        let products = self.products.0.f_reshape([outputs, heads, a, b])?.f_permute([1, 2, 0, 3])?;
        let products = products.f_reshape([heads, a, outputs * b])?;
        let parts = first.f_reshape([batch, heads, a])?.f_transpose(0, 1)?;
        let left = parts.f_bmm(&products)?.f_reshape([heads, batch, outputs, b])?;
        let right = second.f_reshape([batch, heads, 1, b])?.f_transpose(0, 1)?;
        Ok(left.f_mul(&right)?.f_sum_dim_intlist([0_i64, 3].as_slice(), false, tch::Kind::Float)?)
    }
}
