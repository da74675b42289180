//! Step 10: no_new_privs, session keyring, empty capability sets.
//!
//! Owns what a process of the box can never gain. Each call that the kernel
//! refuses stops the launch. Source: capabilities(7), "Capability bounding set";
//! prctl(2), PR_SET_NO_NEW_PRIVS; keyctl(2), KEYCTL_JOIN_SESSION_KEYRING.

use std::io;

use crate::report::Refusal;
use crate::sys;

/// linux/capability.h
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// One past the highest capability any kernel knows; the real end is EINVAL.
const CAP_END: u64 = 64;
// linux/keyctl.h and keyctl_setperm(3): possessor all, user view, read, search and link.
const KEYCTL_JOIN_SESSION_KEYRING: i32 = 1;
const KEYCTL_SETPERM: i32 = 5;
const KEY_SPEC_SESSION_KEYRING: i32 = -3;
const KEYRING_PERM: u32 = 0x3f00_0000 | 0x001b_0000;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

pub fn no_new_privs() -> Result<(), Refusal> {
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(|e| Refusal::new("nnp_denied", "PR_SET_NO_NEW_PRIVS").io(&e))
}

/// Drops every capability from the bounding set; needs CAP_SETPCAP, so it is
/// done by P1 for itself and for the command that it forks.
pub fn empty_bounding_set() -> Result<(), Refusal> {
    for cap in 0..CAP_END {
        match sys::prctl(libc::PR_CAPBSET_DROP, cap) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && cap > 0 => break,
            Err(e) => return Err(Refusal::new("caps_denied", format!("bounding set, capability {cap}")).io(&e)),
        }
    }
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as u64;
    sys::prctl(libc::PR_CAP_AMBIENT, clear).map_err(|e| Refusal::new("caps_denied", "ambient set").io(&e))
}

/// Empties the effective, permitted and inheritable sets.
pub fn drop_all() -> Result<(), Refusal> {
    let header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let data = [CapData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: version 3 reads one header and two data elements, which live through the call.
    let ret = unsafe { libc::syscall(libc::SYS_capset, &header, data.as_ptr()) };
    sys::check(ret).map(drop).map_err(|e| Refusal::new("caps_denied", "capset").io(&e))
}

/// A session keyring without the caller's keys.
///
/// One named keyring serves all boxes of a user, because each keyring counts
/// against a quota of 200 keys (keyrings(7), maxkeys) that 200 boxes at once
/// would exhaust; it stays empty, since no box may call add_key or keyctl. It is
/// joined by P0, in the namespace where the next P0 can find it.
pub fn join_keyring() -> Result<(), Refusal> {
    let fail = |e: &io::Error| Refusal::new("keyring_denied", "session keyring").io(e);
    let name = c"stockade.box".as_ptr();
    // SAFETY: the name is static; setperm takes integers.
    unsafe {
        sys::check(libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name)).map_err(|e| fail(&e))?;
        sys::check(libc::syscall(libc::SYS_keyctl, KEYCTL_SETPERM, KEY_SPEC_SESSION_KEYRING, KEYRING_PERM))
            .map(drop)
            .map_err(|e| fail(&e))
    }
}

/// False where a filter around this process refuses the calls of keyrings: the command inherits it, so
/// nothing that it could ask for reaches a keyring.
pub fn join_keyring_if_reachable() -> Result<bool, Refusal> {
    match join_keyring() {
        Err(refusal) if matches!(refusal.errno, Some(libc::EPERM | libc::ENOSYS)) => Ok(false),
        other => other.map(|()| true),
    }
}
