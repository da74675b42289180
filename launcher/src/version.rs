//! `--version --json`: what this launcher is and what the kernel offers it.

use crate::plan;
use crate::report;
use crate::steps::{landlock, seccomp};

pub fn json() -> String {
    serde_json::json!({
        "name": "stockade-launch",
        "version": env!("CARGO_PKG_VERSION"),
        "plan_schema": plan::SCHEMA,
        "receipt_schema": report::SCHEMA,
        "kernel": kernel(),
        "arch": std::env::consts::ARCH,
        "landlock_abi": landlock::kernel_abi(),
        "seccomp_filters": seccomp::FILTERS,
    })
    .to_string()
}

/// `uname -r`.
pub fn kernel() -> String {
    // SAFETY: utsname is plain data; the kernel terminates its strings.
    unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&mut name);
        std::ffi::CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    }
}
