//! What a program brings to compute networks with: a library of products, and a library with autograd, if it has one.

use std::fmt::Debug;
use std::sync::Arc;

use zagros_job::{Device, Job, Precision};
use zagros_network::{GemmKernel, ProductKernel};

use crate::streamed::LayerWindow;
use crate::{LabelledSamples, ModelResult, StepOutput, TargetLosses, TensorForm};

#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// They make the products of training where a network has a step of its own: the first one, unless a run wants another. Without any,
    /// autograd makes every step.
    pub kernels: &'static [&'static dyn ProductKernel],
    /// Makes the networks that have none, and what else needs libtorch.
    pub autograd: Option<&'static dyn AutogradLibrary>,
}

impl Default for Backend {
    /// Products in Rust, and no autograd.
    fn default() -> Self {
        Self { kernels: &[&GemmKernel], autograd: None }
    }
}

impl Backend {
    /// For a run that goes on: with the kernel of this name alone, if the program has it.
    #[must_use]
    pub fn keep_products(self, name: &str) -> Self {
        let kept = self.kernels.iter().position(|kernel| kernel.name() == name);
        kept.map_or(self, |index| Self { kernels: &self.kernels[index..=index], ..self })
    }

    /// The kernel of a run. In bf16, units of the processor outweigh all else.
    pub(crate) fn kernel(&self, precision: Precision) -> &'static dyn ProductKernel {
        let has_units = |kernel: &&&'static dyn ProductKernel| kernel.has_bf16_units();
        let rounding = self.kernels.iter().find(has_units).filter(|_| precision == Precision::Bf16);
        rounding.or(self.kernels.first()).copied().unwrap_or(&GemmKernel)
    }
}

/// A library that makes a step by autograd.
pub trait AutogradLibrary: Debug + Send + Sync {
    /// A network with first weights by the job's seed. With a window, its weights are elsewhere.
    ///
    /// # Errors
    /// When the shape leaves the network without input, there is no such device, or the library fails.
    fn make_network(
        &self,
        job: &Job,
        losses: &TargetLosses,
        window: Option<&Arc<LayerWindow>>,
    ) -> ModelResult<Box<dyn AutogradNetwork>>;
}

/// A network, its weights and its buffers, at such a library. All vectors of weights are empty if the weights are elsewhere.
pub trait AutogradNetwork: Debug {
    /// What a model's manifest calls the library.
    fn library(&self) -> &'static str;

    fn weights(&self) -> &[f32];

    /// Of the last backward, in the order of the weights.
    fn gradients(&self) -> &[f32];

    /// Both, to change them.
    fn weights_and_gradients(&mut self) -> (&mut [f32], &mut [f32]);

    /// Sets the gradients to zero.
    fn clear_gradients(&mut self) -> ModelResult;

    /// Sets dropout to that of this step.
    fn draw_for(&mut self, step: u64);

    /// Seeds dropout from now on.
    fn drop_by(&mut self, seed: u64);

    /// Forward and backward of so many samples, with gradients that are computed `scale` times as large.
    fn backward(&mut self, samples: LabelledSamples<'_>, batch: usize, scale: f32) -> ModelResult<StepOutput>;

    /// Outputs of so many samples, `[batch, outputs]`, with these weights in place of its own.
    fn score(
        &self,
        numeric: &[f32],
        embeddings: &[f32],
        batch: usize,
        weights: Option<&[f32]>,
    ) -> ModelResult<Vec<f32>>;

    /// The weights, or these in their place, and the buffers in safetensors' format.
    fn encode(&self, weights: Option<&[f32]>) -> ModelResult<Vec<u8>>;

    /// What [`Self::encode`] gives, ascending by name.
    fn tensor_forms(&self) -> ModelResult<Vec<TensorForm>>;

    /// Takes saved values of these tensors; none stays as it is.
    fn take_tensors(&mut self, saved: &[Option<&[u8]>]) -> ModelResult;

    /// The network's other state, such as the running statistics of a batch norm.
    fn buffers(&self) -> &dyn NetworkBuffers;

    fn buffers_mut(&mut self) -> &mut dyn NetworkBuffers;
}

/// The state of a network besides its weights. Forward changes it before it is known whether its step is made: the changes count
/// once the step is.
pub trait NetworkBuffers: Debug {
    fn value_count(&self) -> usize;

    /// The step of the last forward is made.
    fn commit_step(&mut self) -> ModelResult;

    /// It is not made, or another forward replaces it.
    fn drop_step(&mut self);

    /// Whether the last forward replaced a number by a value that is not a number.
    fn has_diverged(&self) -> ModelResult<bool>;

    /// The change of each value by the last forward; zeros if there was none.
    ///
    /// # Errors
    /// When a change is not finite, which cannot be added to others.
    fn changes(&self) -> ModelResult<Vec<f32>>;

    /// Replaces the changes, as many as there are values.
    fn replace_changes(&mut self, changes: &[f32]) -> ModelResult;
}

/// Whether this processor multiplies such numbers faster than f32.
pub fn has_units(precision: Precision) -> bool {
    #[cfg(target_arch = "x86_64")]
    let (bf16, f16) =
        (std::arch::is_x86_feature_detected!("avx512bf16"), std::arch::is_x86_feature_detected!("avx512fp16"));
    #[cfg(target_arch = "aarch64")]
    let (bf16, f16) =
        (std::arch::is_aarch64_feature_detected!("bf16"), std::arch::is_aarch64_feature_detected!("fp16"));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (bf16, f16) = (false, false);
    match precision {
        Precision::Bf16 => bf16,
        Precision::F16 => f16,
        Precision::F32 => true,
    }
}

/// The job's precision, if this processor multiplies it no faster than f32.
pub fn without_units(job: &Job) -> Option<&'static str> {
    let precision = job.train.precision;
    let name = if precision == Precision::Bf16 { "bf16" } else { "f16" };
    (job.train.device != Device::Cuda && !has_units(precision)).then_some(name)
}
