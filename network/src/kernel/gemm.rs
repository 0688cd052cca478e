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
