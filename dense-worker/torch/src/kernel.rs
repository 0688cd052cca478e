//! Products by libtorch.

use std::any::Any;

use tch::{Device, Kind, TchError, Tensor};
use zagros_job::Precision;
use zagros_model::has_units;
use zagros_network::{ProductKernel, RoundedCopies, RoundedProducts, StepResult, View, ViewMut};

use crate::error::{TorchError, TorchResult};
use crate::int;

/// On the calling thread alone: the parallelism of a step is between shares of a batch.
#[derive(Clone, Copy, Debug)]
pub struct TorchKernel;

impl ProductKernel for TorchKernel {
    fn name(&self) -> &'static str {
        "libtorch"
    }

    fn has_bf16_units(&self) -> bool {
        has_units(Precision::Bf16)
    }

    fn prepare_thread(&self) -> Box<dyn Any> {
        // libtorch counts its threads by calling thread.
        tch::set_num_threads(1);
        Box::new(tch::no_grad_guard())
    }

    fn multiply(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>, adds: bool) -> StepResult {
        let (a, b, mut out) = (tensor(a)?, tensor(b)?, tensor_mut(out)?);
        let made = if adds { out.f_addmm_(&a, &b) } else { a.f_mm_out(&out, &b) };
        Ok(made.map(drop).map_err(TorchError::from)?)
    }

    fn rounded(&self, shape: [usize; 2], rows: usize) -> StepResult<Box<dyn RoundedProducts>> {
        Ok(match self.has_bf16_units() {
            true => Box::new(HalfCopies::new(shape, rows)?),
            false => Box::new(RoundedCopies::new(&TorchKernel, shape, rows)),
        })
    }
}

/// For libtorch to read while the values live.
pub(crate) fn tensor(view: View<'_>) -> TorchResult<Tensor> {
    if !view.is_within_values() {
        return Err(TorchError::shape("a product goes beyond its values"));
    }
    let View { values, rows, columns, row_stride, column_stride } = view;
    let (sizes, strides) = ([int(rows), int(columns)], [int(row_stride), int(column_stride)]);
    #[expect(
        unsafe_code,
        reason = "a copy of every activation costs a tenth of a step, and one of a layer as much as its way here"
    )]
    // SAFETY: every element that sizes and strides reach is within the slice, as checked above, and libtorch only reads it. The tensor
    // lives within the call of a product, for which the slice is borrowed; or its holders are variables of a layer in use, from which the
    // layer takes it before it gives the values back.
    let tensor = unsafe { Tensor::f_from_blob(values.as_ptr().cast(), &sizes, &strides, Kind::Float, Device::Cpu) };
    Ok(tensor?)
}

/// As [`tensor`], to be written too.
pub(crate) fn tensor_mut(view: ViewMut<'_>) -> TorchResult<Tensor> {
    if !view.is_within_values() {
        return Err(TorchError::shape("a product goes beyond its values"));
    }
    let ViewMut { values, rows, columns, stride } = view;
    let (sizes, strides) = ([int(rows), int(columns)], [int(stride), 1]);
    #[expect(unsafe_code, reason = "as above")]
    // SAFETY: as above; and no other code reads or writes the slice while libtorch uses the tensor.
    let tensor = unsafe { Tensor::f_from_blob(values.as_mut_ptr().cast(), &sizes, &strides, Kind::Float, Device::Cpu) };
    Ok(tensor?)
}

/// Copies in bf16, kept from chunk to chunk.
#[derive(Debug)]
struct HalfCopies {
    /// `[outputs, inputs]`, the variable at the start of the batch.
    weight: Tensor,
    transposed: Tensor,
    /// `[rows, inputs]`, of the last input.
    input: Tensor,
    /// `[rows, outputs]`, of the last slopes.
    slopes: Tensor,
    /// Rows of the last input and slopes.
    rows: i64,
}

impl HalfCopies {
    fn new([outputs, inputs]: [usize; 2], rows: usize) -> TorchResult<Self> {
        let empty =
            |rows: usize, columns: usize| Tensor::f_zeros([int(rows), int(columns)], (Kind::BFloat16, Device::Cpu));
        let weight = empty(outputs, inputs)?;
        let transposed = weight.f_tr()?;
        Ok(Self { weight, transposed, input: empty(rows, inputs)?, slopes: empty(rows, outputs)?, rows: 0 })
    }

    /// Their first rows, as many as the last input has.
    fn last_rows(&self, copies: &Tensor) -> TorchResult<Tensor> {
        Ok(copies.f_narrow(0, 0, self.rows)?)
    }
}

impl RoundedProducts for HalfCopies {
    fn refresh(&mut self, weight: &[f32]) -> StepResult {
        let shape = self.weight.size();
        let [outputs, inputs] = [0, 1].map(|index| usize::try_from(shape[index]).unwrap_or(0));
        let weight = tensor(View::dense(weight, (outputs, inputs)))?;
        Ok(self.weight.f_copy_(&weight).map_err(TorchError::from)?)
    }

    fn forward(&mut self, input: View<'_>, output: ViewMut<'_>) -> StepResult {
        self.rows = int(input.rows);
        let mut copy = self.last_rows(&self.input)?;
        copy.f_copy_(&tensor(input)?).map_err(TorchError::from)?;
        Ok(put(copy.f_mm(&self.transposed), output, false)?)
    }

    fn weight_gradient(&mut self, slopes: View<'_>, gradient: &mut [f32], adds: bool) -> StepResult {
        let (mut copy, input) = (self.last_rows(&self.slopes)?, self.last_rows(&self.input)?);
        copy.f_copy_(&tensor(slopes)?).map_err(TorchError::from)?;
        let columns = usize::try_from(input.size()[1]).unwrap_or(0);
        let transposed = copy.f_tr().map_err(TorchError::from)?;
        Ok(put(transposed.f_mm(&input), ViewMut::dense(gradient, (slopes.columns, columns)), adds)?)
    }

    fn input_gradient(&mut self, d_input: ViewMut<'_>, adds: bool) -> StepResult {
        let wanted = int(d_input.columns);
        let weight = self.weight.f_narrow(1, self.weight.size()[1] - wanted, wanted).map_err(TorchError::from)?;
        Ok(put(self.last_rows(&self.slopes)?.f_mm(&weight), d_input, adds)?)
    }
}

fn put(product: Result<Tensor, TchError>, out: ViewMut<'_>, adds: bool) -> TorchResult {
    let (product, mut out) = (product?, tensor_mut(out)?);
    if adds {
        let _ = out.f_add_(&product)?;
    } else {
        out.f_copy_(&product)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zagros_network::Matrix;
    use zagros_zip::ZipEq;

    use super::*;

    fn wave(rows: usize, columns: usize, step: f32) -> Matrix {
        let mut matrix = Matrix::dense(rows, columns);
        let values = matrix.values_mut(rows).iter_mut().enumerate();
        values.for_each(|(place, value)| *value = (place as f32 * step).sin());
        matrix
    }

    #[test]
    fn rounded_values_multiply_as_bf16_do() {
        let (weight, input, slopes) = (wave(12, 40, 0.7), wave(9, 40, 0.3), wave(9, 12, 1.1));
        let all = |mut products: Box<dyn RoundedProducts>| {
            products.refresh(weight.values(12)).unwrap();
            let (mut output, mut d_weight, mut d_input) =
                (Matrix::dense(9, 12), Matrix::dense(12, 40), Matrix::dense(9, 33));
            products.forward(input.view(9), output.view_mut(9)).unwrap();
            for adds in [false, true] {
                products.weight_gradient(slopes.view(9), d_weight.values_mut(12), adds).unwrap();
            }
            products.input_gradient(d_input.view_mut(9), false).unwrap();
            [tensor(output.view(9)), tensor(d_weight.view(12)), tensor(d_input.view(9))]
                .map(|made| made.unwrap().copy())
        };
        let halves = all(Box::new(HalfCopies::new([12, 40], 9).unwrap()));
        for (rounded, half) in all(Box::new(RoundedCopies::new(&TorchKernel, [12, 40], 9))).iter().zip_eq(&halves) {
            // A sum in another order may round to the neighbour: one of 2^8.
            assert!(rounded.allclose(half, 0.008, 1e-6, false));
        }
    }

    #[test]
    fn a_view_beyond_its_values_is_refused() {
        let mut out = Matrix::dense(2, 2);
        let short = View::dense(&[1.0; 3], (2, 2));
        TorchKernel.multiply(short, short, out.view_mut(2), false).unwrap_err();
    }
}
