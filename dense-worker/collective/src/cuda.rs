//! libtorch's CUDA libraries. The programs are not linked to them, and open them when a job asks for a device.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

pub const CUDA_HALF: &str = "libtorch_cuda.so";

/// Opens a library for the whole process, so that libraries opened later find its symbols. Call this before anything asks
/// libtorch about CUDA.
#[expect(unsafe_code, reason = "a library that is opened runs code of its own")]
pub fn open_cuda_half(name: &str) -> Result<(), String> {
    // SAFETY: libtorch's library only registers what it knows when it is opened; it stays open as long as the process.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
    library.map(std::mem::forget).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_opened_is_named() {
        let error = open_cuda_half("libno_such_library.so").unwrap_err();
        assert!(error.contains("libno_such_library.so"), "{error}");
        // Every process can open its C library.
        open_cuda_half("libc.so.6").unwrap();
    }
}
