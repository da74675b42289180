//! The ground that the release build stands on instead of a C library.
//!
//! Owns the entry point, thread-local storage, the heap, the memory routines that
//! compiled code calls, and those C functions that the launcher and Rust's standard
//! library reach, under their C names: nearly all one system call each.
//! Starting glibc takes longer than everything else that a launch does before its
//! first clone (docs/adr/0007). Fails closed: `build.rs` shows the linker an empty C
//! library, so a function that is missing here is an error of the build.
//!
//! Debug builds and the unit tests use the system's C library; there the names of
//! this module are ordinary functions that nothing but its own tests calls.
//! Read next: `start.rs`, then `calls.rs`.

#![cfg_attr(not(bare), allow(dead_code))]

mod calls;
mod directory;
mod heap;
mod memory;
mod shaped;
mod signals;
mod start;
mod stubs;
mod threads;
mod tls;
mod tty;

use std::cell::Cell;

use libc::{c_int, c_long};

pub use heap::trim;

/// Source: syscall(2): answers of the kernel above this are negated error numbers.
const LAST_ERROR: usize = -4096_isize as usize;

thread_local! {
    static ERRNO: Cell<c_int> = const { Cell::new(0) };
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    ERRNO.with(Cell::as_ptr)
}

/// One system call; the answer as the kernel gave it.
///
/// # Safety
/// As the call says: pointers among `arguments` are valid for what it does with them.
#[inline(always)]
unsafe fn raw<const COUNT: usize>(number: c_long, arguments: [usize; COUNT]) -> usize {
    let at = |index: usize| if index < COUNT { arguments[index] } else { 0 };
    // SAFETY: the caller's promise; the kernel ignores arguments that a call does not have.
    unsafe { syscalls::raw::syscall6(number as usize, at(0), at(1), at(2), at(3), at(4), at(5)) }
}

/// The convention of C: -1 and errno.
fn answer(kernel: usize) -> isize {
    if kernel > LAST_ERROR {
        return fail(kernel.wrapping_neg() as c_int);
    }
    kernel as isize
}

fn fail(errno: c_int) -> isize {
    ERRNO.set(errno);
    -1
}
