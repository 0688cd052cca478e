//! libtorch's CUDA half, which is no part of the programs: they open it when a job asks for a device.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Its name for the loader.
pub const CUDA_HALF: &str = "libtorch_cuda.so";

/// Opens such a library for the whole process, whose symbols others that come later find. It has to come before anything
/// asks libtorch about CUDA, which then knows of it.
///
/// # Errors
/// In the loader's words, which name the library.
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
    fn what_cannot_be_opened_is_named() {
        let error = open_cuda_half("libno_such_library.so").unwrap_err();
        assert!(error.contains("libno_such_library.so"), "{error}");
        // What every process has can be opened.
        open_cuda_half("libc.so.6").unwrap();
    }
}
