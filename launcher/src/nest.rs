//! Entering a running box from outside.
//!
//! Owns the one way in that exists: P0, which owns the box's user namespace,
//! forks a helper that joins the box's user and mount namespaces. Today it puts
//! back a guard; a narrower box for a process inside is built from here, too.
//! Source: setns(2); user_namespaces(7), "Capabilities".

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::plan::Guard;
use crate::steps::guards;
use crate::sys;

const PLACED: i32 = 0;
const GONE: i32 = 2;
const FAILED: i32 = 1;
const RESTORE_TRIES: u32 = 100;
const RESTORE_PAUSE: Duration = Duration::from_millis(1);

/// What became of a guard that was lost.
pub enum Restored {
    Placed,
    /// Nothing has this name any more.
    Gone,
    Failed,
}

/// The box's namespaces, opened while P1 could still be looked at.
pub struct Entrance {
    /// None inside another box: there its supervisor has the power already.
    user: Option<OwnedFd>,
    mount: OwnedFd,
}

impl Entrance {
    pub fn open(pid: libc::pid_t) -> io::Result<Entrance> {
        let open = |name: &str| File::open(format!("/proc/{pid}/ns/{name}")).map(OwnedFd::from);
        Ok(Entrance { user: Some(open("user")?), mount: open("mnt")? })
    }

    pub fn lent(mount: &OwnedFd) -> io::Result<Entrance> {
        Ok(Entrance { user: None, mount: mount.try_clone()? })
    }

    /// Places one guard again, from a helper that joins the box.
    pub fn restore(&self, guard: &Guard) -> Restored {
        // SAFETY: P0 is single-threaded. The helper shares nothing that it changes.
        match unsafe { sys::fork_into(0) } {
            Ok(0) => {
                let code = match self.place(guard) {
                    Ok(()) => PLACED,
                    Err(e) if e.raw_os_error() == Some(libc::ENOENT) => GONE,
                    Err(_) => FAILED,
                };
                // SAFETY: no destructor of P0's may run in its copy.
                unsafe { libc::_exit(code) }
            }
            Ok(pid) => answer(pid),
            Err(_) => Restored::Failed,
        }
    }

    fn place(&self, guard: &Guard) -> io::Result<()> {
        let user = self.user.iter().map(|ns| (ns, libc::CLONE_NEWUSER));
        for (ns, kind) in user.chain([(&self.mount, libc::CLONE_NEWNS)]) {
            // SAFETY: the descriptor is ours.
            sys::check(i64::from(unsafe { libc::setns(ns.as_raw_fd(), kind) }))?;
        }
        let root = sys::open_host("/")?;
        retry(|| guards::place(root.as_raw_fd(), guard).map(drop))
    }
}

/// rename(2) detaches the mount before the new name is in place, and whoever
/// unlinks first leaves a gap: the name is looked for again, for a tenth of a second.
fn retry(mut place: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..RESTORE_TRIES {
        match place() {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE | libc::EINVAL)) => {
                std::thread::sleep(RESTORE_PAUSE);
            }
            other => return other,
        }
    }
    place()
}

fn answer(pid: libc::pid_t) -> Restored {
    let mut status = 0;
    // SAFETY: our own child; status lives through the call.
    let reaped = unsafe { libc::waitpid(pid, &mut status, 0) } == pid;
    match (reaped && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status)) {
        Some(PLACED) => Restored::Placed,
        Some(GONE) => Restored::Gone,
        _ => Restored::Failed,
    }
}
