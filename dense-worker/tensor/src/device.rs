//! Where tensors are, and with how many threads libtorch computes.
#![expect(unsafe_code, reason = "calls the shim over libtorch")]

use zagros_shim::call;

use crate::error::TorchError;
use crate::sys;

/// Where a tensor's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorDevice {
    /// The processor's memory.
    Cpu,
    /// A CUDA device, by its index.
    Cuda(usize),
    /// Neither of them. This crate makes no tensor there.
    Other,
}

/// The shim's number for the processor. A CUDA device is its index, another one is less than both.
const CPU: i32 = -1;

impl TensorDevice {
    pub(crate) fn of_number(number: i32) -> Self {
        match number {
            CPU => Self::Cpu,
            _ => usize::try_from(number).map_or(Self::Other, Self::Cuda),
        }
    }

    /// # Errors
    /// When libtorch has no number for such an index, or the device is another one.
    pub(crate) fn number(self) -> Result<i32, TorchError> {
        let index = match self {
            Self::Cpu => return Ok(CPU),
            Self::Cuda(index) => i8::try_from(index).ok(),
            Self::Other => None,
        };
        let refused = || TorchError { reason: format!("tensors are not made on the device {self:?}") };
        index.map(i32::from).ok_or_else(refused)
    }
}

/// Whether libtorch's CUDA half is there and shows a device.
#[must_use]
pub fn cuda_is_available() -> bool {
    let mut count = 0;
    // SAFETY: count and why are ours.
    let asked = call(|why, room| unsafe { sys::zagros_cuda_devices(&raw mut count, why, room) });
    asked.is_ok() && count > 0
}

/// Makes this the number of threads of each operator that the calling thread starts. libtorch refuses none but 0.
///
/// # Errors
/// In libtorch's words.
pub fn set_num_threads(threads: usize) -> Result<(), TorchError> {
    let threads = i32::try_from(threads).unwrap_or(i32::MAX);
    // SAFETY: why is ours.
    Ok(call(|why, room| unsafe { sys::zagros_set_threads(threads, why, room) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_shims_numbers() {
        for (device, number) in [(TensorDevice::Cpu, CPU), (TensorDevice::Cuda(0), 0), (TensorDevice::Cuda(7), 7)] {
            assert_eq!((TensorDevice::of_number(number), device.number()), (device, Ok(number)));
        }
        assert_eq!(TensorDevice::of_number(-2), TensorDevice::Other);
        assert!(TensorDevice::Other.number().is_err() && TensorDevice::Cuda(1000).number().is_err());
    }

    #[test]
    fn zero_threads_are_refused_in_libtorchs_words() {
        let refused = set_num_threads(0).unwrap_err().to_string();
        assert!(refused.contains("positive number of threads"), "{refused}");
    }
}
