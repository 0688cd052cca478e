//! A cross layer of DCN-V2 (Wang et al. 2021, equations 1 and 2).

use tch::Tensor;

use crate::error::TorchError;
use crate::layers::{BlockTensors, LayerCalls, LayerNumber, LinearLayer};

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
    pub(super) fn new(is_low_rank: bool, tensors: &mut BlockTensors<'_, '_>) -> Result<Self, TorchError> {
        if !is_low_rank {
            return Ok(Self::Full(tensors.linear()?));
        }
        let (down, down_layer) = tensors.matrix()?;
        Ok(Self::LowRank { down, down_layer, up: tensors.linear()? })
    }

    /// x₀ ⊙ (W·x + b) + x.
    pub(super) fn forward<'n>(
        &'n self,
        first: &Tensor,
        x: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, TorchError> {
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
