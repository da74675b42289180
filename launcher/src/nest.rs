//! Entering a running box from outside.
//!
//! Owns the one way in that exists: P0, which owns the box's user namespace,
//! forks a helper that joins the box's user and mount namespaces. Today it puts
//! back a guard; a narrower box for a process inside is built from here, too.
//! Source: setns(2); user_namespaces(7), "Capabilities".

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::plan::Guard;
use crate::steps::guards;
use crate::sys;

/// The box's namespaces, opened while P1 could still be looked at.
pub struct Entrance {
    user: File,
    mount: File,
}

impl Entrance {
    pub fn open(pid: libc::pid_t) -> io::Result<Entrance> {
        let open = |name: &str| File::open(format!("/proc/{pid}/ns/{name}"));
        Ok(Entrance { user: open("user")?, mount: open("mnt")? })
    }

    /// Places one guard again; false when that could not be done.
    pub fn restore(&self, guard: &Guard) -> bool {
        // SAFETY: P0 is single-threaded. The helper shares nothing that it changes.
        match unsafe { sys::fork_into(0) } {
            Ok(0) => {
                let code = i32::from(self.place(guard).is_err());
                // SAFETY: no destructor of P0's may run in its copy.
                unsafe { libc::_exit(code) }
            }
            Ok(pid) => {
                let mut status = 0;
                // SAFETY: our own child; status lives through the call.
                unsafe { libc::waitpid(pid, &mut status, 0) == pid && status == 0 }
            }
            Err(_) => false,
        }
    }

    fn place(&self, guard: &Guard) -> io::Result<()> {
        for (ns, kind) in [(&self.user, libc::CLONE_NEWUSER), (&self.mount, libc::CLONE_NEWNS)] {
            // SAFETY: the descriptor is ours.
            sys::check(i64::from(unsafe { libc::setns(ns.as_raw_fd(), kind) }))?;
        }
        let root = sys::open_host("/")?;
        guards::place(root.as_raw_fd(), guard).map(drop)
    }
}
