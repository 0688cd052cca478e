//! The values of a tensor in this process's memory, as a slice.

use tch::{Device, Kind, Tensor};

/// Of a contiguous f32 tensor on the processor.
pub(crate) fn values(tensor: &Tensor) -> &[f32] {
    check(tensor);
    #[expect(
        unsafe_code,
        reason = "tch lends no slice of a tensor, and a copy of every activation costs a tenth of a step"
    )]
    // SAFETY: the tensor is defined, contiguous, of f32 and in this process's memory, so its numel() values follow its
    // data pointer, which is aligned for f32; they live as long as the handle, which the slice borrows. Nothing
    // writes to them meanwhile: all users are in this module, on one thread, and ask libtorch for nothing while they hold it.
    unsafe {
        std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

pub(crate) fn values_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "as above")]
    // SAFETY: as above; and nothing else reads them meanwhile.
    unsafe {
        std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

fn check(tensor: &Tensor) {
    let plain = tensor.is_contiguous() && tensor.kind() == Kind::Float && tensor.device() == Device::Cpu;
    assert!(plain && tensor.numel() > 0, "not a plain f32 tensor: {tensor:?}");
}
