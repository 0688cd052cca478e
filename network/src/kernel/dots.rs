//! Products of which each element is summed in one order, whatever the other rows and columns are: the score of a sample is a function
//! of the sample and the model alone.
//!
//! Each lane of a vector adds every LANES-th product, and the lanes are added in the end. A tile of rows and columns has a sum of its
//! own for each pair, so how rows are tiled changes nothing.

use pulp::{Arch, Simd, WithSimd};
use zagros_zip::ZipEq;

use super::rounded::RoundedCopies;
use super::{ProductKernel, RoundedProducts};
use crate::matrix::{View, ViewMut};
use crate::{StepError, StepResult};

/// Rows of a tile. With its columns, all sums are in registers.
const ROWS: usize = 4;
const COLUMNS: usize = 3;
/// Rows that stay in cache while all columns are read.
const BLOCK: usize = 64;

/// The processor's own vectors, without a library.
#[derive(Clone, Copy, Debug)]
pub struct DotsKernel;

impl ProductKernel for DotsKernel {
    fn name(&self) -> &'static str {
        "dots"
    }

    fn multiply(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>, adds: bool) -> StepResult {
        if a.column_stride != 1 || (b.row_stride != 1 && b.column_stride != 1) {
            return Err(StepError::Kernel("a product of scores reads its first factor by rows".into()));
        }
        Arch::new().dispatch(Dots { a, b, out, adds });
        Ok(())
    }

    fn rounded(&self, shape: [usize; 2], rows: usize) -> StepResult<Box<dyn RoundedProducts>> {
        Ok(Box::new(RoundedCopies::new(&DotsKernel, shape, rows)))
    }
}

/// A product whose first factor's rows lie in one piece, and the columns or the rows of the second.
struct Dots<'a> {
    a: View<'a>,
    b: View<'a>,
    out: ViewMut<'a>,
    adds: bool,
}

impl WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.b.row_stride == 1 { self.multiply_columns(simd) } else { self.sum_rows(simd) }
    }
}

impl Dots<'_> {
    /// Dot products of the rows of a and the columns of b.
    #[inline(always)]
    fn multiply_columns<S: Simd>(mut self, simd: S) {
        let (rows, columns) = (self.a.rows, self.b.columns);
        for block in (0..rows).step_by(BLOCK) {
            let end = (block + BLOCK).min(rows);
            let mut column = 0;
            while column + COLUMNS <= columns {
                self.tile_rows::<S, COLUMNS>(simd, (block, end), column);
                column += COLUMNS;
            }
            while column < columns {
                self.tile_rows::<S, 1>(simd, (block, end), column);
                column += 1;
            }
        }
    }

    #[inline(always)]
    fn tile_rows<S: Simd, const C: usize>(&mut self, simd: S, (start, end): (usize, usize), column: usize) {
        let mut row = start;
        while row + ROWS <= end {
            self.tile::<S, ROWS, C>(simd, row, column);
            row += ROWS;
        }
        while row < end {
            self.tile::<S, 1, C>(simd, row, column);
            row += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const C: usize>(&mut self, simd: S, row: usize, column: usize) {
        let length = self.a.columns;
        let rows: [&[f32]; R] =
            std::array::from_fn(|index| &self.a.values[(row + index) * self.a.row_stride..][..length]);
        let columns: [&[f32]; C] =
            std::array::from_fn(|index| &self.b.values[(column + index) * self.b.column_stride..][..length]);
        let sums = dots(simd, rows, columns);
        for (index, sums) in sums.iter().enumerate() {
            let into = &mut self.out.values[(row + index) * self.out.stride + column..][..C];
            for (into, sum) in into.iter_mut().zip_eq(sums) {
                *into = if self.adds { *into + sum } else { *sum };
            }
        }
    }

    /// Sums of the rows of b, each times a value of a's row.
    #[inline(always)]
    fn sum_rows<S: Simd>(self, simd: S) {
        let Self { a, b, out, adds } = self;
        for row in 0..a.rows {
            let factors = &a.values[row * a.row_stride..][..a.columns];
            let into = &mut out.values[row * out.stride..][..b.columns];
            if !adds {
                into.fill(0.0);
            }
            for (index, factor) in factors.iter().enumerate() {
                let other = &b.values[index * b.row_stride..][..b.columns];
                let (vectors, rest) = S::as_mut_simd_f32s(into);
                let (others, other_rest) = S::as_simd_f32s(other);
                let factors = simd.splat_f32s(*factor);
                for (sum, other) in vectors.iter_mut().zip_eq(others) {
                    *sum = simd.mul_add_f32s(factors, *other, *sum);
                }
                for (sum, other) in rest.iter_mut().zip_eq(other_rest) {
                    *sum = factor.mul_add(*other, *sum);
                }
            }
        }
    }
}

#[inline(always)]
fn dots<S: Simd, const R: usize, const C: usize>(simd: S, rows: [&[f32]; R], columns: [&[f32]; C]) -> [[f32; C]; R] {
    let (rows, columns) = (rows.map(S::as_simd_f32s), columns.map(S::as_simd_f32s));
    let whole = rows[0].0.len();
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    let row_vectors = rows.map(|(vectors, _)| &vectors[..whole]);
    let column_vectors = columns.map(|(vectors, _)| &vectors[..whole]);
    for at in 0..whole {
        let values: [S::f32s; C] = std::array::from_fn(|index| column_vectors[index][at]);
        for (sums, row) in sums.iter_mut().zip_eq(&row_vectors) {
            let value = row[at];
            for (sum, other) in sums.iter_mut().zip_eq(&values) {
                *sum = simd.mul_add_f32s(value, *other, *sum);
            }
        }
    }
    let rests = (rows.map(|(_, rest)| rest), columns.map(|(_, rest)| rest));
    if !rests.0[0].is_empty() {
        let values = rests.1.map(|rest| simd.partial_load_f32s(rest));
        for (sums, row) in sums.iter_mut().zip_eq(&rests.0) {
            let value = simd.partial_load_f32s(row);
            for (sum, other) in sums.iter_mut().zip_eq(&values) {
                *sum = simd.mul_add_f32s(value, *other, *sum);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| simd.reduce_sum_f32s(sum)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;
    use crate::kernel::GemmKernel;
    use crate::matrix::Matrix;

    fn value(view: View<'_>, row: usize, column: usize) -> f64 {
        f64::from(view.values[row * view.row_stride + column * view.column_stride])
    }

    proptest! {
        #[test]
        fn products_are_exact_and_a_row_has_the_same_bits_in_every_batch_and_place(
            rows in 1_usize..150, inner in 1_usize..70, columns in 1_usize..70, transposed: [bool; 2], adds: bool, seed: u64,
        ) {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut draw = |rows: usize, columns: usize| {
                let mut made = Matrix::aligned(rows, columns);
                made.values_mut(rows).iter_mut().for_each(|value| *value = random.random_range(-1.0..1.0));
                made
            };
            let (a, across, b) = (draw(rows, inner), draw(inner, rows), draw(columns.max(inner), inner.max(columns)));
            let b = match transposed[1] {
                true => b.view(columns).narrow_columns(0, inner).transposed(),
                false => b.view(inner).narrow_columns(0, columns),
            };
            let multiply = |kernel: &dyn ProductKernel, a: View<'_>| {
                let mut out = Matrix::aligned(a.rows, columns);
                out.values_mut(a.rows).fill(0.5);
                kernel.multiply(a, b, out.view_mut(a.rows), adds).unwrap();
                out
            };
            // Dots read their first factor by rows.
            let first = if transposed[0] { across.view(inner).transposed() } else { a.view(rows) };
            for (kernel, a) in [(&GemmKernel as &dyn ProductKernel, first), (&DotsKernel as &dyn ProductKernel, a.view(rows))] {
                let out = multiply(kernel, a);
                for row in 0..rows {
                    for column in 0..columns {
                        let sum: f64 = (0..inner).map(|index| value(a, row, index) * value(b, index, column)).sum();
                        let (expected, found) = (sum + if adds { 0.5 } else { 0.0 }, value(out.view(rows), row, column));
                        prop_assert!((found - expected).abs() < 1e-5, "{} is not {}", found, expected);
                    }
                }
                // What lies between the rows is not written.
                for row in out.values(rows).chunks_exact(out.stride) {
                    prop_assert!(row[columns..].iter().all(|value| *value == 0.5));
                }
            }
            let all = multiply(&DotsKernel, a.view(rows));
            for row in 0..rows {
                let one = multiply(&DotsKernel, a.view(rows).narrow_rows(row, 1));
                prop_assert_eq!(&one.values(1)[..columns], &all.view(rows).narrow_rows(row, 1).values[..columns]);
            }
        }
    }
}
