//! Products of bf16 by a kernel of f32: factors and product are rounded to bf16. They differ from those of a processor's bf16 units by the
//! order of their sums.

use half::bf16;
use zagros_zip::ZipEq;

use super::{ProductKernel, RoundedProducts};
use crate::StepResult;
use crate::matrix::{Matrix, View, ViewMut};

/// f32 with bf16's digits, kept from chunk to chunk.
#[derive(Debug)]
pub struct RoundedCopies {
    kernel: &'static dyn ProductKernel,
    /// `[outputs, inputs]`, at the start of the batch.
    weight: Matrix,
    outputs: usize,
    /// `[rows, inputs]`, of the last input.
    input: Matrix,
    /// `[rows, outputs]`, of the last slopes.
    slopes: Matrix,
    /// Rows of the last input and slopes.
    rows: usize,
}

impl RoundedCopies {
    /// Of a layer with a weight `[outputs, inputs]` and inputs of up to `rows` rows.
    pub fn new(kernel: &'static dyn ProductKernel, [outputs, inputs]: [usize; 2], rows: usize) -> Self {
        let (weight, input, slopes) =
            (Matrix::dense(outputs, inputs), Matrix::dense(rows, inputs), Matrix::dense(rows, outputs));
        Self { kernel, weight, outputs, input, slopes, rows: 0 }
    }

    /// a·b, rounded, into `out` or added to it.
    fn multiply(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>, adds: bool) -> StepResult {
        let (rows, columns) = (out.rows, out.columns);
        let mut product = Matrix::dense(rows, columns);
        self.kernel.multiply(a, b, product.view_mut(rows), false)?;
        let into = out.values.chunks_mut(out.stride).take(rows);
        for (into, row) in into.zip_eq(product.values(rows).chunks_exact(columns)) {
            for (into, value) in into[..columns].iter_mut().zip_eq(row) {
                *into = if adds { *into + rounded(*value) } else { rounded(*value) };
            }
        }
        Ok(())
    }
}

impl RoundedProducts for RoundedCopies {
    fn refresh(&mut self, weight: &[f32]) -> StepResult {
        round(View::dense(weight, (self.outputs, self.weight.columns)), &mut self.weight);
        Ok(())
    }

    fn forward(&mut self, input: View<'_>, output: ViewMut<'_>) -> StepResult {
        self.rows = input.rows;
        round(input, &mut self.input);
        self.multiply(self.input.view(self.rows), self.weight.view(self.outputs).transposed(), output, false)
    }

    fn weight_gradient(&mut self, slopes: View<'_>, gradient: &mut [f32], adds: bool) -> StepResult {
        round(slopes, &mut self.slopes);
        let out = ViewMut::dense(gradient, (self.outputs, self.weight.columns));
        self.multiply(self.slopes.view(self.rows).transposed(), self.input.view(self.rows), out, adds)
    }

    fn input_gradient(&mut self, d_input: ViewMut<'_>, adds: bool) -> StepResult {
        let (inputs, wanted) = (self.weight.columns, d_input.columns);
        let weight = self.weight.view(self.outputs).narrow_columns(inputs - wanted, wanted);
        self.multiply(self.slopes.view(self.rows), weight, d_input, adds)
    }
}

fn rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

fn round(values: View<'_>, into: &mut Matrix) {
    let columns = values.columns;
    let rows = into.values_mut(values.rows).chunks_exact_mut(columns.max(1));
    for (row, into) in rows.enumerate() {
        let values = &values.values[row * values.row_stride..][..columns];
        into.iter_mut().zip_eq(values).for_each(|(into, value)| *into = rounded(*value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{DotsKernel, GemmKernel};

    fn wave(rows: usize, columns: usize, step: f32) -> Matrix {
        let mut matrix = Matrix::dense(rows, columns);
        let values = matrix.values_mut(rows).iter_mut().enumerate();
        values.for_each(|(place, value)| *value = (place as f32 * step).sin());
        matrix
    }

    /// Output, gradient of the weight (twice, added) and of the input.
    fn products(mut products: RoundedCopies) -> [Matrix; 3] {
        let (weight, input, slopes) = (wave(12, 40, 0.7), wave(9, 40, 0.3), wave(9, 12, 1.1));
        products.refresh(weight.values(12)).unwrap();
        let mut made = [Matrix::dense(9, 12), Matrix::dense(12, 40), Matrix::dense(9, 33)];
        products.forward(input.view(9), made[0].view_mut(9)).unwrap();
        for adds in [false, true] {
            products.weight_gradient(slopes.view(9), made[1].values_mut(12), adds).unwrap();
        }
        products.input_gradient(made[2].view_mut(9), false).unwrap();
        made
    }

    #[test]
    fn factors_and_products_are_rounded() {
        let found = products(RoundedCopies::new(&GemmKernel, [12, 40], 9));
        let (weight, input, slopes) = (wave(12, 40, 0.7), wave(9, 40, 0.3), wave(9, 12, 1.1));
        let value = |matrix: &Matrix, row: usize, column: usize| {
            f64::from(rounded(matrix.values(row + 1)[row * matrix.columns + column]))
        };
        let sum = |terms: &dyn Fn(usize) -> f64, count: usize| (0..count).map(terms).sum::<f64>();
        let is_near = |found: f32, expected: f64| {
            assert_eq!(found, rounded(found));
            // Rounded to 8 bits; a sum in another order may round to the neighbour.
            assert!((f64::from(found) - expected).abs() <= 0.008 * expected.abs() + 1e-6, "{found} is not {expected}");
        };
        for row in 0..9 {
            for column in 0..12 {
                let expected = sum(&|index| value(&input, row, index) * value(&weight, column, index), 40);
                is_near(found[0].values(9)[row * 12 + column], expected);
            }
            for column in 0..33 {
                let expected = sum(&|index| value(&slopes, row, index) * value(&weight, index, column + 7), 12);
                is_near(found[2].values(9)[row * 33 + column], expected);
            }
        }
        for row in 0..12 {
            for column in 0..40 {
                let expected = 2.0 * sum(&|index| value(&slopes, index, row) * value(&input, index, column), 9);
                is_near(found[1].values(12)[row * 40 + column], expected);
            }
        }
    }

    /// Scores in bf16 are functions of a row, too.
    #[test]
    fn a_row_has_the_same_bits_alone() {
        let (weight, input) = (wave(12, 40, 0.7), wave(9, 40, 0.3));
        let mut all = Matrix::dense(9, 12);
        let mut products = RoundedCopies::new(&DotsKernel, [12, 40], 9);
        products.refresh(weight.values(12)).unwrap();
        products.forward(input.view(9), all.view_mut(9)).unwrap();
        for row in 0..9 {
            let mut one = Matrix::dense(1, 12);
            products.forward(input.view(9).narrow_rows(row, 1), one.view_mut(1)).unwrap();
            assert_eq!(one.values(1), &all.values(9)[row * 12..][..12]);
        }
    }
}
