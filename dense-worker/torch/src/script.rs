//! A TorchScript module with its parameters and buffers. `tch` has modules too, but shows only their parameters: the running
//! statistics of a batch norm are buffers.
#![expect(unsafe_code, reason = "calls the shim over libtorch's TorchScript")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use tch::{Device, Tensor};

use crate::c10d::shim::{c_string, checked_call};

#[repr(C)]
struct RawModule {
    _opaque: [u8; 0],
}

type TensorCallback = unsafe extern "C" fn(to: *mut c_void, name: *const c_char, tensor: *mut c_void);

unsafe extern "C" {
    fn zagros_module_load(
        bytes: *const c_char,
        length: usize,
        device: *const c_char,
        out: *mut *mut RawModule,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_module_free(module: *mut RawModule);
    fn zagros_module_tensors(
        module: *const RawModule,
        buffers: bool,
        to: *mut c_void,
        take: TensorCallback,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_module_set_buffer(
        module: *mut RawModule,
        name: *const c_char,
        tensor: *const c_void,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn zagros_module_train(module: *mut RawModule, on: bool, why: *mut c_char, room: usize) -> c_int;
    fn zagros_module_forward(
        module: *mut RawModule,
        inputs: *const *const c_void,
        count: usize,
        out: *mut *mut c_void,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
}

#[derive(Debug)]
pub(crate) struct ScriptModule(NonNull<RawModule>);

// SAFETY: a module is bound to no thread. It is not Sync, so only one thread at a time calls it.
unsafe impl Send for ScriptModule {}

impl ScriptModule {
    /// Loads a module from the bytes that `torch.jit.save` wrote. Loading can run code of its author.
    pub(crate) fn load(bytes: &[u8], device: Device) -> Result<Self, String> {
        let device = c_string(&device_name(device))?;
        let mut out = ptr::null_mut();
        checked_call(|why, room| {
            // SAFETY: the bytes are read before the call returns, the device ends with NUL, out and why are ours.
            unsafe { zagros_module_load(bytes.as_ptr().cast(), bytes.len(), device.as_ptr(), &raw mut out, why, room) }
        })?;
        NonNull::new(out).map(Self).ok_or_else(|| "no module was made".to_owned())
    }

    /// The parameters, by name. They are trained. They share the module's memory.
    pub(crate) fn parameters(&self) -> Result<Vec<(String, Tensor)>, String> {
        self.named_tensors(false)
    }

    /// The buffers, by name: other state, such as running statistics. They share the module's memory until the module
    /// replaces them, as `self.count = self.count + 1` does.
    pub(crate) fn buffers(&self) -> Result<Vec<(String, Tensor)>, String> {
        self.named_tensors(true)
    }

    fn named_tensors(&self, buffers: bool) -> Result<Vec<(String, Tensor)>, String> {
        let mut taken: Vec<(String, Tensor)> = Vec::new();
        let target = ptr::from_mut(&mut taken).cast();
        // SAFETY: the module lives as long as self. `take` is called while the list lives, and no other code holds the list.
        checked_call(|why, room| unsafe {
            zagros_module_tensors(self.0.as_ptr(), buffers, target, take_tensor, why, room)
        })?;
        Ok(taken)
    }

    /// Sets the buffer of that name to `tensor`. The module shares its memory.
    pub(crate) fn set_buffer(&mut self, name: &str, tensor: &Tensor) -> Result<(), String> {
        let name = c_string(name)?;
        let tensor = tensor.as_ptr().cast();
        // SAFETY: the module and the tensor live for the call, the name ends with NUL, why is ours.
        checked_call(|why, room| unsafe { zagros_module_set_buffer(self.0.as_ptr(), name.as_ptr(), tensor, why, room) })
    }

    pub(crate) fn train(&mut self, on: bool) -> Result<(), String> {
        // SAFETY: the module lives as long as self.
        checked_call(|why, room| unsafe { zagros_module_train(self.0.as_ptr(), on, why, room) })
    }

    /// Calls the module.
    ///
    /// # Errors
    /// libtorch's message, when the call fails; or when it returns something else than one tensor.
    pub(crate) fn forward(&mut self, inputs: &[&Tensor]) -> Result<Tensor, String> {
        let inputs: Vec<*const c_void> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
        let mut out = ptr::null_mut();
        checked_call(|why, room| {
            // SAFETY: the module and the inputs live for the call; out and why are ours.
            unsafe { zagros_module_forward(self.0.as_ptr(), inputs.as_ptr(), inputs.len(), &raw mut out, why, room) }
        })?;
        // SAFETY: a tensor that the shim made for us.
        NonNull::new(out).map(|out| unsafe { own_tensor(out.as_ptr()) }).ok_or_else(|| "no tensor was made".to_owned())
    }
}

impl Drop for ScriptModule {
    fn drop(&mut self) {
        // SAFETY: made by the shim, and freed once.
        unsafe { zagros_module_free(self.0.as_ptr()) }
    }
}

/// # Safety
/// `to` is the list of [`ScriptModule::named_tensors`], `name` ends with NUL, and no other code has the tensor.
unsafe extern "C" fn take_tensor(to: *mut c_void, name: *const c_char, tensor: *mut c_void) {
    // SAFETY: as this function's.
    let (taken, name) = unsafe { (&mut *to.cast::<Vec<(String, Tensor)>>(), CStr::from_ptr(name)) };
    // SAFETY: as this function's.
    taken.push((name.to_string_lossy().into_owned(), unsafe { own_tensor(tensor) }));
}

/// # Safety
/// The tensor was made with `new`, and no other code has it.
unsafe fn own_tensor(tensor: *mut c_void) -> Tensor {
    // SAFETY: as this function's; it is what tch has of a tensor, and deletes.
    unsafe { Tensor::from_ptr(tensor.cast()) }
}

fn device_name(device: Device) -> String {
    match device {
        Device::Cpu => "cpu".to_owned(),
        Device::Cuda(index) => format!("cuda:{index}"),
        Device::Mps => "mps".to_owned(),
        Device::Vulkan => "vulkan".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_a_module_are_refused() {
        for (bytes, expected) in [(&b""[..], "istream reader failed"), (b"no module", "PytorchStreamReader failed")] {
            let refused = ScriptModule::load(bytes, Device::Cpu).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn devices_have_the_names_that_libtorch_reads() {
        assert_eq!([Device::Cpu, Device::Cuda(1)].map(device_name), ["cpu", "cuda:1"]);
        let refused = ScriptModule::load(b"no module", Device::Vulkan).unwrap_err();
        assert!(!refused.contains("device string"), "{refused}");
    }
}
