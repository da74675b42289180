//! `stockade-launch`: obeys a plan, applies it whole or refuses.
//!
//! Start reading here, then `supervise.rs` (P0), `init.rs` (P1 and P2, the order
//! of the steps) and `steps/`. The launcher decides nothing and has no defaults;
//! everything that decides is Python. Without std's start-up code: it would set
//! SIGPIPE to ignored before we could see how the caller left it.

#![cfg_attr(not(test), no_main)]
// The tests have no main of ours, so most of the program is unused to them.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod alone;
mod answers;
mod appear;
mod args;
#[cfg(test)]
mod bpf;
mod byparts;
mod clock;
mod control;
mod copyback;
mod cover;
mod discard;
mod drive;
mod ending;
mod errno;
mod facts;
mod glob;
mod init;
mod inside;
mod keeper;
mod launch;
mod look;
mod nest;
mod nested;
mod paths;
mod persist;
mod plan;
mod processors;
mod promises;
mod receipts;
mod report;
mod rt;
mod session;
mod sockets;
mod spool;
mod steps;
mod stores;
mod supervise;
mod sys;
mod terminal;
mod trace;
mod ulid;
mod version;
mod watch;
mod wire;

use std::ffi::{c_char, c_int, CStr};

/// # Safety
/// Called by the C start-up code with the kernel's argument vector.
#[cfg(not(test))]
#[no_mangle]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: the kernel gives argc strings, each terminated, that live as long as the process.
    let words: Vec<&CStr> = (1..argc.max(0) as usize).map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }).collect();
    launch::main(&words, session::Block { argv, envp })
}
