//! What the standard library links and the launcher never needs.
//!
//! Owns answers of "none" for unwinding, back traces, the C environment and dynamic
//! symbols. A panic prints its message and aborts: nothing is unwound, so a
//! function that takes part in unwinding ends the process.

use std::ptr::null_mut;

use libc::{c_char, c_int, c_void, size_t};

use super::{fail, signals};
use crate::errno;

/// unwind.h, _URC_END_OF_STACK.
const END_OF_STACK: c_int = 5;

macro_rules! no_unwinding {
    ($($name:ident)*) => {$(
        #[cfg_attr(bare, no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> ! {
            signals::abort()
        }
    )*};
}

no_unwinding! {
    _Unwind_Resume _Unwind_GetDataRelBase _Unwind_GetIP _Unwind_GetIPInfo _Unwind_GetLanguageSpecificData
    _Unwind_GetRegionStart _Unwind_GetTextRelBase _Unwind_SetGR _Unwind_SetIP
}

/// A back trace has no frames.
#[cfg_attr(bare, no_mangle)]
#[allow(non_snake_case)]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _with: *mut c_void) -> c_int {
    END_OF_STACK
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn dl_iterate_phdr(_visit: *const c_void, _with: *mut c_void) -> c_int {
    0
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn dlsym(_library: *mut c_void, _name: *const c_char) -> *mut c_void {
    null_mut()
}

/// The caller's environment is for the command; it must not steer the launcher.
#[cfg_attr(bare, no_mangle)]
extern "C" fn getenv(_name: *const c_char) -> *mut c_char {
    null_mut()
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn getcwd(_to: *mut c_char, _size: size_t) -> *mut c_char {
    fail(libc::ENOSYS);
    null_mut()
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn realpath(_path: *const c_char, _to: *mut c_char) -> *mut c_char {
    fail(libc::ENOSYS);
    null_mut()
}

/// What `io::Error` shows of a number: its name, as everywhere else in our messages.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn __xpg_strerror_r(number: c_int, to: *mut c_char, size: size_t) -> c_int {
    let text = errno::label(number);
    let length = text.len().min(size.saturating_sub(1));
    // SAFETY: the caller's buffer has `size` bytes, the last of which is kept for the zero.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), length);
        *to.add(length) = 0;
    }
    0
}
