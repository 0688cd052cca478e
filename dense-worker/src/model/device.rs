//! Where the network computes: on the processor, or on a CUDA device of the same machine.
//!
//! One program serves both. It is not linked to libtorch's CUDA libraries, but opens them when a job asks for a device. On
//! a device, forward and backward use autograd. Weights and gradients have a mirror in the machine's memory
//! ([`super::weights::FlatParameters`]). Everything else works on the mirror as without a device: optimiser, checks,
//! checkpoints, all-reduce. That costs two copies of the weights per step, a few megabytes.

use tch::Kind;
use zagros_collective::{CUDA_HALF, open_cuda_half};
use zagros_job::{Device, Job, Precision};

use super::ModelError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DevicePlacement {
    pub(super) device: tch::Device,
    pub(super) mirrored: bool,
}

impl DevicePlacement {
    /// # Errors
    /// [`ModelError::Device`] when there is no such device.
    pub(super) fn new(job: &Job) -> Result<Self, ModelError> {
        match job.train.device {
            Device::Cpu => Ok(Self { device: tch::Device::Cpu, mirrored: false }),
            Device::Cuda => {
                open_cuda_half(CUDA_HALF).map_err(not_opened)?;
                if !tch::Cuda::is_available() {
                    let reason = "this machine shows no device to it".to_owned();
                    let next = "see whether `nvidia-smi` lists one and, in a container, whether it is given to it";
                    return Err(ModelError::Device { reason, next });
                }
                // CUDA_VISIBLE_DEVICES decides which device that is.
                Ok(Self { device: tch::Device::Cuda(0), mirrored: true })
            }
        }
    }
}

fn not_opened(error: String) -> ModelError {
    ModelError::Device {
        reason: format!("libtorch's CUDA half cannot be opened: {error}"),
        next: "put the `lib` folders of the same libtorch release for CUDA, and of CUDA, on LD_LIBRARY_PATH \
               (docs/gpu.md)",
    }
}

/// Whether this processor multiplies such numbers faster than f32.
pub(super) fn has_units(kind: Kind) -> bool {
    #[cfg(target_arch = "x86_64")]
    let (bf16, f16) =
        (std::arch::is_x86_feature_detected!("avx512bf16"), std::arch::is_x86_feature_detected!("avx512fp16"));
    #[cfg(target_arch = "aarch64")]
    let (bf16, f16) =
        (std::arch::is_aarch64_feature_detected!("bf16"), std::arch::is_aarch64_feature_detected!("fp16"));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (bf16, f16) = (false, false);
    match kind {
        Kind::BFloat16 => bf16,
        Kind::Half => f16,
        _ => true,
    }
}

/// The job's precision, if this processor multiplies it no faster than f32.
pub(crate) fn without_units(job: &Job) -> Option<&'static str> {
    match job.train.precision {
        _ if job.train.device == Device::Cuda => None,
        Precision::Bf16 if !has_units(Kind::BFloat16) => Some("bf16"),
        Precision::F16 if !has_units(Kind::Half) => Some("f16"),
        Precision::F32 | Precision::Bf16 | Precision::F16 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_cannot_be_opened_are_named_with_what_to_do() {
        let error = not_opened(open_cuda_half("libno_such_library.so").unwrap_err()).to_string();
        assert!(error.contains("libno_such_library.so") && error.contains("LD_LIBRARY_PATH"), "{error}");
    }
}
