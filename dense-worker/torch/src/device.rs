//! Where the network computes: on the processor, or on a CUDA device of the same machine.
//!
//! One program serves both. It is not linked to libtorch's CUDA libraries, but opens them when a job asks for a device. On
//! a device, forward and backward use autograd. Weights and gradients have a mirror in the machine's memory
//! ([`crate::flat::FlatParameters`]). Everything else works on the mirror as without a device: optimiser, checks,
//! checkpoints, all-reduce. That costs two copies of the weights per step, a few megabytes.

use zagros_job::{Device, Job};

use zagros_model::ModelError;

use crate::c10d::{CUDA_HALF, open_cuda_half};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DevicePlacement {
    pub(crate) device: tch::Device,
    pub(crate) mirrored: bool,
}

impl DevicePlacement {
    pub(crate) fn new(job: &Job) -> Result<Self, ModelError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_cannot_be_opened_are_named_with_what_to_do() {
        let error = not_opened(open_cuda_half("libno_such_library.so").unwrap_err()).to_string();
        assert!(error.contains("libno_such_library.so") && error.contains("LD_LIBRARY_PATH"), "{error}");
    }
}
