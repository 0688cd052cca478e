//! How Rust calls C++ over libtorch. A call returns 0, or another number and the reason of its failure.
//! `include/guarded.hpp` is the C++ side.

use std::ffi::{CStr, CString, c_char, c_int};

/// Bytes for the reason of a failure, which can be a trace.
const REASON_BYTES: usize = 8192;

/// Makes a call, with room for the reason of a failure.
pub(crate) fn checked_call(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    let mut why = vec![0_u8; REASON_BYTES];
    if call(why.as_mut_ptr().cast(), why.len()) == 0 {
        return Ok(());
    }
    Err(CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy().into_owned())
}

/// Text as a C string; an error where it contains a NUL, at which C would end it.
pub(crate) fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a NUL in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "writes as C++ does")]
    fn a_call_that_fails_says_why() {
        assert_eq!(checked_call(|_, _| 0), Ok(()));
        assert_eq!(checked_call(|_, _| 1), Err(String::new()));
        let failed = checked_call(|why, room| {
            assert!(room > 4);
            // SAFETY: there is room for it.
            unsafe { c"gone".as_ptr().copy_to(why, 5) };
            3
        });
        assert_eq!(failed, Err("gone".to_owned()));
    }

    #[test]
    fn text_with_a_nul_is_refused() {
        assert!(c_string("a\0b").unwrap_err().contains("NUL"));
        assert_eq!(c_string("ab").unwrap().as_c_str(), c"ab");
    }
}
