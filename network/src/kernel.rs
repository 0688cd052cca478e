//! Matrix products, made by the library that a program brings.

mod dots;
mod gemm;
mod rounded;

use std::any::Any;
use std::fmt::Debug;

use crate::StepResult;
use crate::matrix::{View, ViewMut};

pub use dots::DotsKernel;
pub use gemm::GemmKernel;
pub use rounded::RoundedCopies;

/// Which library makes the products of a run, and with which code, is a function of shapes, processor and build alone: so a run that
/// resumes has the bits of one that was not interrupted.
pub trait ProductKernel: Debug + Send + Sync {
    /// What a model's manifest calls it.
    fn name(&self) -> &'static str;

    /// Whether the processor's units for bf16 make its rounded products.
    fn has_bf16_units(&self) -> bool {
        false
    }

    /// Makes this thread ready for products, until what is returned is dropped.
    fn prepare_thread(&self) -> Box<dyn Any> {
        Box::new(())
    }

    /// `out` = a·b, or with `adds` a·b is added to `out`.
    fn multiply(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>, adds: bool) -> StepResult;

    /// The products of a layer with a weight `[outputs, inputs]` and inputs of up to `rows` rows, in bf16.
    fn rounded(&self, shape: [usize; 2], rows: usize) -> StepResult<Box<dyn RoundedProducts>>;
}

/// The products of a layer whose factors are rounded to bf16. It keeps copies of the weight, of the last input and of the last slopes.
pub trait RoundedProducts: Debug + Send {
    /// Rounds the weight, `[outputs, inputs]`.
    fn refresh(&mut self, weight: &[f32]) -> StepResult;

    /// `output` = `input`·Wᵀ.
    fn forward(&mut self, input: View<'_>, output: ViewMut<'_>) -> StepResult;

    /// slopesᵀ·input of the last input, into the gradient `[outputs, inputs]` or added to it.
    fn weight_gradient(&mut self, slopes: View<'_>, gradient: &mut [f32], adds: bool) -> StepResult;

    /// slopes·W of the last slopes, for the last inputs: as many as `d_input` has columns.
    fn input_gradient(&mut self, d_input: ViewMut<'_>, adds: bool) -> StepResult;
}
