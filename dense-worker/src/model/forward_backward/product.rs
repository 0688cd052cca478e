//! The matrix products of a layer, in f32 or in bf16.

use tch::{Device, Kind, Tensor};

use super::ChunkProgress;
use super::blocks::SampleBlocks;
use super::layer::StepParts;
use crate::model::weights::{LINE, Matrix};
use crate::model::{ModelError, int};

#[derive(Debug)]
pub(super) struct LayerProducts {
    /// `[outputs, inputs]`, the variable itself without autograd.
    weight: Tensor,
    shape: [i64; 2],
    sum: SumMemory,
    half: Option<HalfCopies>,
}

/// Where the weight's gradient is while chunks add to it.
#[derive(Debug)]
enum SumMemory {
    /// In the gradient itself.
    Gradient,
    /// In a matrix of its own, whose rows start at cache lines: they are written a fifth faster.
    Aligned(Matrix),
    /// As before, made for each batch: nothing as large as a streamed layer stays.
    AlignedForBatch(Option<Matrix>),
}

/// Copies in bf16, kept from chunk to chunk. If the processor has no units for bf16, they are f32 with bf16's digits: the
/// products differ only by the order of their sums, and are many times faster there.
#[derive(Debug)]
struct HalfCopies {
    /// `[outputs, inputs]`, the variable at the start of the batch.
    weight: Tensor,
    transposed: Tensor,
    /// `[rows, inputs]`, of the last input.
    input: Tensor,
    /// `[rows, outputs]`, of the last slopes.
    slopes: Tensor,
}

impl LayerProducts {
    /// For a weight of this shape and inputs of the rows of `parts`. With `half`, the products use copies of this kind.
    pub(super) fn new(
        weight: Tensor,
        shape: [i64; 2],
        half: Option<Kind>,
        parts: &StepParts<'_>,
    ) -> Result<Self, ModelError> {
        let half = match half {
            Some(kind) => {
                let empty = |size: &[i64]| Tensor::f_zeros(size, (kind, Device::Cpu));
                let (copy, rows) = (empty(&shape)?, int(parts.rows));
                let (input, slopes) = (empty(&[rows, shape[1]])?, empty(&[rows, shape[0]])?);
                Some(HalfCopies { transposed: copy.f_tr()?, weight: copy, input, slopes })
            }
            None => None,
        };
        let inputs = usize::try_from(shape[1]).unwrap_or(0);
        let is_wide = inputs > LINE && !inputs.is_multiple_of(LINE);
        let sum = match (half.is_none() && is_wide, parts.is_streamed()) {
            (false, _) => SumMemory::Gradient,
            (true, false) => SumMemory::Aligned(sum_of(shape)?),
            (true, true) => SumMemory::AlignedForBatch(None),
        };
        Ok(Self { weight, shape, sum, half })
    }

    pub(super) fn output_count(&self) -> usize {
        usize::try_from(self.shape[0]).unwrap_or(0)
    }

    /// Reads the changed weight. Call it before each batch.
    pub(super) fn refresh(&mut self) -> Result<(), ModelError> {
        if let Some(half) = &mut self.half {
            round(&self.weight, &mut half.weight)?;
        }
        Ok(())
    }

    /// `output` = `input`·Wᵀ.
    pub(super) fn forward(&mut self, input: &Tensor, output: &mut Tensor, by: SampleBlocks) -> Result<(), ModelError> {
        match &mut self.half {
            None => {
                let transposed = self.weight.f_tr()?;
                by.for_each_block([input, output], |[input, output], _| {
                    let _ = input.f_mm_out(output, &transposed)?;
                    Ok(())
                })
            }
            Some(half) => {
                let mut copy = half.input.f_narrow(0, 0, input.size()[0])?;
                round(input, &mut copy)?;
                Ok(output.f_copy_(&product(&copy, &half.transposed)?)?)
            }
        }
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
        let Some(half) = &mut self.half else { return self.add_to_gradient(slopes, input, gradient, progress) };
        let rows = slopes.size()[0];
        let (mut copy, input) = (half.slopes.f_narrow(0, 0, rows)?, half.input.f_narrow(0, 0, rows)?);
        round(slopes, &mut copy)?;
        let product = product(&copy.f_tr()?, &input)?;
        if progress.earlier {
            let _ = gradient.f_add_(&product)?;
        } else {
            gradient.f_copy_(&product)?;
        }
        Ok(())
    }

    fn add_to_gradient(
        &mut self,
        slopes: &Tensor,
        input: &Tensor,
        gradient: &mut Tensor,
        progress: &ChunkProgress<'_>,
    ) -> Result<(), ModelError> {
        let mut sum = match &mut self.sum {
            SumMemory::Gradient => return add_products(slopes, input, gradient, progress),
            SumMemory::Aligned(sum) => sum.all_rows()?,
            SumMemory::AlignedForBatch(Some(sum)) => sum.all_rows()?,
            SumMemory::AlignedForBatch(none) => none.insert(sum_of(self.shape)?).all_rows()?,
        };
        add_products(slopes, input, &mut sum, progress)?;
        if progress.last {
            gradient.f_copy_(&sum)?;
            if let SumMemory::AlignedForBatch(sum) = &mut self.sum {
                *sum = None;
            }
        }
        Ok(())
    }

    /// The columns of a weight for the last inputs, as many as `d_input` has.
    fn of_last_inputs(&self, weight: &Tensor, d_input: &Tensor) -> Result<Tensor, ModelError> {
        let wanted = d_input.size()[1];
        Ok(weight.f_narrow(1, self.shape[1] - wanted, wanted)?)
    }

    /// `d_input` = slopes·W, or with `adds` that is added to it, with the slopes of the last [`Self::weight_gradient`], for the last
    /// inputs: as many as `d_input` has columns.
    pub(super) fn input_gradient(
        &mut self,
        slopes: &Tensor,
        d_input: &Tensor,
        by: SampleBlocks,
        adds: bool,
    ) -> Result<(), ModelError> {
        let Some(half) = &self.half else {
            let weight = self.of_last_inputs(&self.weight, d_input)?;
            return by.for_each_block([slopes, d_input], |[slopes, d_input], _| {
                let _ = if adds { d_input.f_addmm_(slopes, &weight)? } else { slopes.f_mm_out(d_input, &weight)? };
                Ok(())
            });
        };
        let slopes = half.slopes.f_narrow(0, 0, slopes.size()[0])?;
        let product = product(&slopes, &self.of_last_inputs(&half.weight, d_input)?)?;
        let mut d_input = d_input.shallow_clone();
        if adds {
            let _ = d_input.f_add_(&product)?;
        } else {
            d_input.f_copy_(&product)?;
        }
        Ok(())
    }
}

/// Adds slopesᵀ·input, block by block, to that of earlier chunks.
fn add_products(
    slopes: &Tensor,
    input: &Tensor,
    sum: &mut Tensor,
    progress: &ChunkProgress<'_>,
) -> Result<(), ModelError> {
    progress.blocks.for_each_block([slopes, input], |[slopes, input], block| {
        let slopes = slopes.f_tr()?;
        let adds = progress.earlier || block > 0;
        let _ = if adds { sum.f_addmm_(&slopes, input)? } else { slopes.f_mm_out(sum, input)? };
        Ok(())
    })
}

fn sum_of([outputs, inputs]: [i64; 2]) -> Result<Matrix, ModelError> {
    Matrix::aligned(usize::try_from(outputs).unwrap_or(0), usize::try_from(inputs).unwrap_or(0))
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

    use super::super::TraversalPurpose;
    use super::*;
    use crate::model::layers::UnitDropout;
    use crate::model::training::{MeanLoss, TargetLosses};

    #[test]
    fn rounded_values_multiply_as_bf16_do() {
        let wave = |size: [i64; 2], step: f64| {
            Tensor::arange(size[0] * size[1], (Kind::Float, Device::Cpu)).reshape(size).g_mul_scalar(step).sin()
        };
        let (weight, input, slopes) = (wave([12, 40], 0.7), wave([9, 40], 0.3), wave([9, 12], 1.1));
        let zeros = |size: [i64; 2]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let all = |kind| {
            let mut none = std::iter::empty();
            let parts = StepParts::for_resident(&mut none);
            let mut products = LayerProducts::new(weight.shallow_clone(), [12, 40], Some(kind), &parts).unwrap();
            products.refresh().unwrap();
            let (mut output, mut d_weight, d_input) = (zeros([9, 12]), zeros([12, 40]), zeros([9, 33]));
            products.forward(&input, &mut output, SampleBlocks::TRAINING).unwrap();
            let losses = TargetLosses::new(&[]);
            let mean = MeanLoss { losses: &losses, factor: 1.0 };
            for (earlier, last) in [(false, false), (true, true)] {
                let (blocks, purpose) = (SampleBlocks::TRAINING, TraversalPurpose::Training);
                let dropout = &mut UnitDropout::new(0.0, 0, 0);
                let progress =
                    ChunkProgress { mean, earlier, last, blocks, purpose, dropout, on_gradients: &mut |_| () };
                products.weight_gradient(&slopes, &input, &mut d_weight, &progress).unwrap();
            }
            products.input_gradient(&slopes, &d_input, SampleBlocks::TRAINING, false).unwrap();
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
