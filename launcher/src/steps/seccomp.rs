//! Step 13: installs one of the system call filters compiled into the launcher.
//!
//! Owns: the choice by name and the kernel call. What a filter allows is reviewed
//! data in `seccomp/<arch>.toml`; `build.rs` turns it into the programs used here.
//!
//! Fails closed: an unknown name or a refusal of the kernel is an error, and the
//! caller must not exec.

use std::io;

/// Programs and names generated from `seccomp/<arch>.toml`.
mod compiled {
    include!(concat!(env!("OUT_DIR"), "/seccomp_filters.rs"));
}

/// Names of the filters: `default`, `default-root` for a box, `init` for its process 1.
pub const FILTERS: &[&str] = compiled::NAMES;

/// Installs `filter` for the calling thread and all that it starts; nothing undoes it.
///
/// no_new_privs must be set before. The flag SPEC_ALLOW keeps kernels before 5.16
/// from switching on the speculative store bypass mitigation for every process with a filter
/// (tens of percent in some programs; later kernels dropped that by themselves):
/// side channels between the parts of one process are no promise of a box.
///
/// Source: seccomp(2); kernel commit 2f46993d83ff ("x86: change default to
/// spec_store_bypass_disable=prctl spectre_v2_user=prctl").
pub fn install(filter: &str) -> io::Result<()> {
    let index = FILTERS.iter().position(|name| *name == filter);
    let index = index.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such filter"))?;
    let program = compiled::PROGRAMS[index];
    let prog = libc::sock_fprog {
        len: program.len() as libc::c_ushort, // at most 4096, checked when compiled
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: `prog` and the static program it points to live through the call, and
    // the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            std::ptr::addr_of!(prog),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
