//! How C++ over libtorch is called. A call answers 0, or another number and why it failed: `include/guarded.hpp` is its
//! side of that.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;

/// Room for the reason of a failure, which can be a trace.
const REASON_BYTES: usize = 8192;

/// Makes a call with room for why it failed.
///
/// # Errors
/// With the reason, as it was given.
pub fn call(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    // Not set to zero: a step makes thousands of calls, and nearly none fails.
    let mut why: [MaybeUninit<u8>; REASON_BYTES] = [MaybeUninit::uninit(); REASON_BYTES];
    why[0].write(0);
    if call(why.as_mut_ptr().cast(), why.len()) == 0 {
        return Ok(());
    }
    #[expect(unsafe_code, reason = "reads what C++ wrote")]
    // SAFETY: a call that writes a reason ends it with NUL within the room; for one that writes none, the first byte is NUL.
    let reason = unsafe { CStr::from_ptr(why.as_ptr().cast()) };
    Err(reason.to_string_lossy().into_owned())
}

/// Text as C has it.
///
/// # Errors
/// When there is a NUL in it, where C would end it.
pub fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a NUL in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "writes as C++ does")]
    fn a_call_that_fails_says_why() {
        assert_eq!(call(|_, _| 0), Ok(()));
        assert_eq!(call(|_, _| 1), Err(String::new()));
        let failed = call(|why, room| {
            assert!(room > 4);
            // SAFETY: there is room for it.
            unsafe { c"gone".as_ptr().copy_to(why, 5) };
            3
        });
        assert_eq!(failed, Err("gone".to_owned()));
    }

    #[test]
    fn text_that_c_would_cut_is_refused() {
        assert!(text("a\0b").unwrap_err().contains("NUL"));
        assert_eq!(text("ab").unwrap().as_c_str(), c"ab");
    }
}
