//! Products by the crate gemm, with the widest vectors that the processor has: the kernel of training in a program without libtorch.

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

use super::rounded::RoundedCopies;
use super::{ProductKernel, RoundedProducts};
use crate::matrix::{View, ViewMut};
use crate::{StepError, StepResult};

/// On the calling thread alone. The order of sums is a function of shapes and processor.
#[derive(Clone, Copy, Debug)]
pub struct GemmKernel;

impl ProductKernel for GemmKernel {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn multiply(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>, adds: bool) -> StepResult {
        let (rows, inner, columns) = (a.rows, a.columns, b.columns);
        let is_within = a.is_within_values() && b.is_within_values() && out.is_within_values();
        if !is_within || b.rows != inner || out.rows != rows || out.columns != columns {
            return Err(StepError::Kernel("a product goes beyond its values".into()));
        }
        let stride = |stride: usize| isize::try_from(stride).unwrap_or(isize::MAX);
        // The crate writes columns that lie in one piece: the transposed product, outᵀ = bᵀ·aᵀ.
        #[expect(unsafe_code, reason = "the crate takes pointers")]
        // SAFETY: every element that sizes and strides reach is within its slice, as checked above. `out` is borrowed mutably, so nothing
        // else reads or writes it meanwhile.
        unsafe {
            get_gemm_fn()(
                columns,
                rows,
                inner,
                out.values.as_mut_ptr(),
                stride(out.stride),
                1,
                adds,
                b.values.as_ptr(),
                stride(b.row_stride),
                stride(b.column_stride),
                a.values.as_ptr(),
                stride(a.row_stride),
                stride(a.column_stride),
                1.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
        Ok(())
    }

    fn rounded(&self, shape: [usize; 2], rows: usize) -> StepResult<Box<dyn RoundedProducts>> {
        Ok(Box::new(RoundedCopies::new(&GemmKernel, shape, rows)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;
    use crate::matrix::Matrix;

    proptest! {
        #[test]
        fn products_are_those_of_the_definition(
            rows in 1_usize..70, inner in 1_usize..70, columns in 1_usize..70, transposed: [bool; 2], adds: bool, seed: u64,
        ) {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut draw = |rows: usize, columns: usize| {
                let mut made = Matrix::aligned(rows, columns);
                made.values_mut(rows).iter_mut().for_each(|value| *value = random.random_range(-1.0..1.0));
                made
            };
            let a = if transposed[0] { draw(inner, rows) } else { draw(rows, inner) };
            let b = if transposed[1] { draw(columns, inner) } else { draw(inner, columns) };
            let a = if transposed[0] { a.view(inner).transposed() } else { a.view(rows) };
            let b = if transposed[1] { b.view(columns).transposed() } else { b.view(inner) };
            let mut out = Matrix::aligned(rows, columns);
            out.values_mut(rows).fill(0.5);
            GemmKernel.multiply(a, b, out.view_mut(rows), adds).unwrap();
            let value = |view: View<'_>, row: usize, column: usize| {
                f64::from(view.values[row * view.row_stride + column * view.column_stride])
            };
            for row in 0..rows {
                for column in 0..columns {
                    let sum: f64 = (0..inner).map(|index| value(a, row, index) * value(b, index, column)).sum();
                    let expected = sum + if adds { 0.5 } else { 0.0 };
                    let found = value(out.view(rows), row, column);
                    prop_assert!((found - expected).abs() < 1e-5, "{} is not {}", found, expected);
                }
            }
            // What lies between the rows is not written.
            for row in out.values(rows).chunks_exact(out.stride) {
                prop_assert!(row[columns..].iter().all(|value| *value == 0.5));
            }
        }
    }

    #[test]
    fn a_view_beyond_its_values_is_refused() {
        let mut out = Matrix::dense(2, 2);
        let short = View::dense(&[1.0; 3], (2, 2));
        GemmKernel.multiply(short, short, out.view_mut(2), false).unwrap_err();
    }
}
