//! The matrix products of a layer, in f32 or in bf16.

use tch::{Device, Kind, Tensor};

use super::Course;
use super::matrix::{LINE, Matrix};
use crate::model::{ModelError, int};

/// A layer's weight as products see it, and what they need besides.
#[derive(Debug)]
pub(super) struct Products {
    /// `[outputs, inputs]`, the variable itself seen without autograd.
    weight: Tensor,
    /// The same, transposed.
    transposed: Tensor,
    /// `[outputs, inputs]`, the weight's gradient while chunks add to it, where its rows would begin anywhere else: those that
    /// begin at a cache line are written a fifth faster.
    sum: Option<Matrix>,
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
        let (outputs, inputs) = (usize::try_from(size[0]).unwrap_or(0), usize::try_from(size[1]).unwrap_or(0));
        let is_wide = inputs > LINE && !inputs.is_multiple_of(LINE);
        let sum = (half.is_none() && is_wide).then(|| Matrix::aligned(outputs, inputs)).transpose()?;
        Ok(Self { weight, transposed, sum, half })
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

    /// slopesᵀ·input, added to what chunks before gave; all of it is in `gradient` after the last chunk. `input` is that
    /// of the last [`Self::forward`].
    pub(super) fn weight_gradient(
        &mut self,
        slopes: &Tensor,
        input: &Tensor,
        gradient: &mut Tensor,
        course: &Course<'_>,
    ) -> Result<(), ModelError> {
        let earlier = course.earlier;
        let add = |sum: &mut Tensor| -> Result<(), ModelError> {
            let slopes = slopes.f_tr()?;
            let _ = if earlier { sum.f_addmm_(&slopes, input)? } else { slopes.f_mm_out(sum, input)? };
            Ok(())
        };
        let half = match (&mut self.half, &self.sum) {
            (None, None) => return add(gradient),
            (None, Some(sum)) => {
                let mut sum = sum.whole()?;
                add(&mut sum)?;
                return if course.last { Ok(gradient.f_copy_(&sum)?) } else { Ok(()) };
            }
            (Some(half), _) => half,
        };
        let rows = slopes.size()[0];
        let (mut copy, input) = (half.slopes.f_narrow(0, 0, rows)?, half.input.f_narrow(0, 0, rows)?);
        copy.f_copy_(slopes)?;
        let product = copy.f_tr()?.f_mm(&input)?;
        if earlier {
            let _ = gradient.f_add_(&product)?;
        } else {
            gradient.f_copy_(&product)?;
        }
        Ok(())
    }

    /// `d_input` = slopes·W, for the slopes of the last [`Self::weight_gradient`]; of as many of the last inputs as
    /// `d_input` has columns.
    pub(super) fn input_gradient(&mut self, slopes: &Tensor, d_input: &mut Tensor) -> Result<(), ModelError> {
        let (inputs, wanted) = (self.weight.size()[1], d_input.size()[1]);
        let of = |weight: &Tensor| weight.f_narrow(1, inputs - wanted, wanted);
        match &self.half {
            None => {
                let _ = slopes.f_mm_out(d_input, &of(&self.weight)?)?;
            }
            Some(half) => {
                let slopes = half.slopes.f_narrow(0, 0, slopes.size()[0])?;
                d_input.f_copy_(&slopes.f_mm(&of(&half.weight)?)?)?;
            }
        }
        Ok(())
    }
}
