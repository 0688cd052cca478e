//! The matrix products of a layer, in f32 or in bf16.

use tch::{Device, Kind, Tensor};

use super::ChunkProgress;
use super::matrix::{LINE, Matrix};
use crate::model::{ModelError, int};

/// A layer's weight for its products, and their buffers.
#[derive(Debug)]
pub(super) struct Products {
    /// `[outputs, inputs]`, the variable itself without autograd.
    weight: Tensor,
    /// The same, transposed.
    transposed: Tensor,
    /// `[outputs, inputs]`, the weight's gradient while chunks add to it. Used if the gradient's own rows do not start at
    /// cache lines: rows that do are written a fifth faster.
    sum: Option<Matrix>,
    half: Option<Half>,
}

/// Copies in bf16, kept from chunk to chunk. If the processor has no units for bf16, they are f32 with bf16's digits: the
/// products differ only by the order of their sums, and are many times faster there.
#[derive(Debug)]
struct Half {
    /// `[outputs, inputs]`, the variable at the start of the batch.
    weight: Tensor,
    transposed: Tensor,
    /// `[rows, inputs]`, of the last input.
    input: Tensor,
    /// `[rows, outputs]`, of the last slopes.
    slopes: Tensor,
}

impl Products {
    /// For inputs of up to `rows` rows. With `half`, the products use copies of this kind.
    pub(super) fn new(weight: &Tensor, rows: usize, half: Option<Kind>) -> Result<Self, ModelError> {
        let weight = weight.f_detach()?;
        let transposed = weight.f_tr()?;
        let size = weight.size();
        let half = match half {
            Some(kind) => {
                let empty = |size: &[i64]| Tensor::f_zeros(size, (kind, Device::Cpu));
                let copy = empty(&size)?;
                let (input, slopes) = (empty(&[int(rows), size[1]])?, empty(&[int(rows), size[0]])?);
                Some(Half { transposed: copy.f_tr()?, weight: copy, input, slopes })
            }
            None => None,
        };
        let (outputs, inputs) = (usize::try_from(size[0]).unwrap_or(0), usize::try_from(size[1]).unwrap_or(0));
        let is_wide = inputs > LINE && !inputs.is_multiple_of(LINE);
        let sum = (half.is_none() && is_wide).then(|| Matrix::aligned(outputs, inputs)).transpose()?;
        Ok(Self { weight, transposed, sum, half })
    }

    /// Reads the changed weight. Call it before each batch.
    pub(super) fn refresh(&mut self) -> Result<(), ModelError> {
        if let Some(half) = &mut self.half {
            round(&self.weight, &mut half.weight)?;
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
                round(input, &mut copy)?;
                output.f_copy_(&product(&copy, &half.transposed)?)?;
            }
        }
        Ok(())
    }

    /// Adds slopesᵀ·input to that of earlier chunks. After the last chunk, `gradient` holds the whole sum. `input` is that
    /// of the last [`Self::forward`].
    pub(super) fn weight_gradient(
        &mut self,
        slopes: &Tensor,
        input: &Tensor,
        gradient: &mut Tensor,
        progress: &ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let earlier = progress.earlier;
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
                return if progress.last { Ok(gradient.f_copy_(&sum)?) } else { Ok(()) };
            }
            (Some(half), _) => half,
        };
        let rows = slopes.size()[0];
        let (mut copy, input) = (half.slopes.f_narrow(0, 0, rows)?, half.input.f_narrow(0, 0, rows)?);
        round(slopes, &mut copy)?;
        let product = product(&copy.f_tr()?, &input)?;
        if earlier {
            let _ = gradient.f_add_(&product)?;
        } else {
            gradient.f_copy_(&product)?;
        }
        Ok(())
    }

    /// Adds slopes·W to `d_input`, as [`Self::input_gradient`].
    pub(super) fn add_input_gradient(&mut self, slopes: &Tensor, d_input: &mut Tensor) -> Result<(), ModelError> {
        let _ = match &self.half {
            None => d_input.f_addmm_(slopes, &self.weight)?,
            Some(half) => {
                let slopes = half.slopes.f_narrow(0, 0, slopes.size()[0])?;
                d_input.f_add_(&product(&slopes, &half.weight)?)?
            }
        };
        Ok(())
    }

    /// `d_input` = slopes·W, with the slopes of the last [`Self::weight_gradient`], for the last inputs: as many as
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
                d_input.f_copy_(&product(&slopes, &of(&half.weight)?)?)?;
            }
        }
        Ok(())
    }
}

/// Values rounded to bf16.
fn round(values: &Tensor, into: &mut Tensor) -> Result<(), ModelError> {
    match into.f_kind()? {
        Kind::BFloat16 => into.f_copy_(values)?,
        _ => into.f_copy_(&values.f_to_kind(Kind::BFloat16)?)?,
    }
    Ok(())
}

/// The product of rounded values, rounded.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor, ModelError> {
    Ok(a.f_mm(b)?.f_to_kind(Kind::BFloat16)?)
}

#[cfg(test)]
mod tests {
    use zagros_zip::ZipEq;

    use super::*;
    use crate::model::loss::{Losses, MeanLoss};

    #[test]
    fn rounded_values_multiply_as_bf16_do() {
        let of = |size: [i64; 2], step: f64| {
            Tensor::arange(size[0] * size[1], (Kind::Float, Device::Cpu)).reshape(size).g_mul_scalar(step).sin()
        };
        let (weight, input, slopes) = (of([12, 40], 0.7), of([9, 40], 0.3), of([9, 12], 1.1));
        let zeros = |size: [i64; 2]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let all = |kind| {
            let mut products = Products::new(&weight, 16, Some(kind)).unwrap();
            products.refresh().unwrap();
            let (mut output, mut d_weight, mut d_input) = (zeros([9, 12]), zeros([12, 40]), zeros([9, 33]));
            products.forward(&input, &mut output).unwrap();
            let losses = Losses::of(&[]);
            let mean = MeanLoss { losses: &losses, factor: 1.0 };
            for (earlier, last) in [(false, false), (true, true)] {
                let progress = ChunkProgress { mean, earlier, last, on_gradients: &mut |_| () };
                products.weight_gradient(&slopes, &input, &mut d_weight, &progress).unwrap();
            }
            products.input_gradient(&slopes, &mut d_input).unwrap();
            [output, d_weight, d_input]
        };
        for (rounded, half) in all(Kind::Float).iter().zip_eq(&all(Kind::BFloat16)) {
            // A sum in another order may round to the neighbour: one of 2^8.
            assert!(rounded.allclose(half, 0.008, 1e-6, false));
            assert!(rounded.to_kind(Kind::BFloat16).to_kind(Kind::Float).allclose(rounded, 0.008, 1e-6, false));
        }
        let exact = input.mm(&weight.tr());
        assert!(!all(Kind::Float)[0].equal(&exact) && all(Kind::Float)[0].allclose(&exact, 0.1, 0.1, false));
    }
}
