//! The matrix products of a layer, in f32 or in bf16.

use tch::{Device, Kind, Tensor};

use crate::model::{ModelError, int};

/// A layer's weight as products see it, and what they need besides.
#[derive(Debug)]
pub(super) struct Products {
    /// `[outputs, inputs]`, the variable itself seen without autograd.
    weight: Tensor,
    /// The same, transposed.
    transposed: Tensor,
    half: Option<Half>,
}

/// Copies in bf16, kept from chunk to chunk.
#[derive(Debug)]
struct Half {
    /// `[outputs, inputs]`, of the variable as it was at the start of the batch.
    weight: Tensor,
    transposed: Tensor,
    /// `[rows, inputs]`, of the last input.
    input: Tensor,
    /// `[rows, outputs]`, of the last slopes.
    slopes: Tensor,
}

impl Products {
    /// For inputs of up to `rows` rows; with `half` in bf16.
    pub(super) fn new(weight: &Tensor, rows: usize, half: bool) -> Result<Self, ModelError> {
        let weight = weight.f_detach()?;
        let transposed = weight.f_tr()?;
        let size = weight.size();
        let half = match half {
            true => {
                let empty = |size: &[i64]| Tensor::f_zeros(size, (Kind::BFloat16, Device::Cpu));
                let copy = empty(&size)?;
                let (input, slopes) = (empty(&[int(rows), size[1]])?, empty(&[int(rows), size[0]])?);
                Some(Half { transposed: copy.f_tr()?, weight: copy, input, slopes })
            }
            false => None,
        };
        Ok(Self { weight, transposed, half })
    }

    /// Takes note of a change of the weight; due before each batch.
    pub(super) fn refresh(&mut self) -> Result<(), ModelError> {
        if let Some(half) = &mut self.half {
            half.weight.f_copy_(&self.weight)?;
        }
        Ok(())
    }

    /// `output` = `input`·Wᵀ.
    pub(super) fn forward(&mut self, input: &Tensor, output: &mut Tensor) -> Result<(), ModelError> {
        match &mut self.half {
            None => {
                let _ = input.f_mm_out(output, &self.transposed)?;
            }
            Some(half) => {
                let mut copy = half.input.f_narrow(0, 0, input.size()[0])?;
                copy.f_copy_(input)?;
                output.f_copy_(&copy.f_mm(&half.transposed)?)?;
            }
        }
        Ok(())
    }

    /// `sum` = slopesᵀ·input, added to what `earlier` chunks gave. `input` is that of the last [`Self::forward`].
    pub(super) fn weight_gradient(
        &mut self,
        slopes: &Tensor,
        input: &Tensor,
        sum: &mut Tensor,
        earlier: bool,
    ) -> Result<(), ModelError> {
        let Some(half) = &mut self.half else {
            let _ =
                if earlier { sum.f_addmm_(&slopes.f_tr()?, input)? } else { slopes.f_tr()?.f_mm_out(sum, input)? };
            return Ok(());
        };
        let rows = slopes.size()[0];
        let (mut copy, input) = (half.slopes.f_narrow(0, 0, rows)?, half.input.f_narrow(0, 0, rows)?);
        copy.f_copy_(slopes)?;
        let product = copy.f_tr()?.f_mm(&input)?;
        if earlier {
            let _ = sum.f_add_(&product)?;
        } else {
            sum.f_copy_(&product)?;
        }
        Ok(())
    }

    /// `d_input` = slopes·W, for the slopes of the last [`Self::weight_gradient`].
    pub(super) fn input_gradient(&mut self, slopes: &Tensor, d_input: &mut Tensor) -> Result<(), ModelError> {
        match &self.half {
            None => {
                let _ = slopes.f_mm_out(d_input, &self.weight)?;
            }
            Some(half) => d_input.f_copy_(&half.slopes.f_narrow(0, 0, slopes.size()[0])?.f_mm(&half.weight)?)?,
        }
        Ok(())
    }
}
