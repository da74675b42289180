//! The third process of a box without namespaces: it ends the box when nobody else is left to.
//!
//! Owns what happens when P0 and P1 are killed at once. No pid namespace takes the rest along then, and
//! what the command left behind belongs to nobody. The keeper is a copy of P1 in P1's Landlock domain that
//! waits for the end of either and sends the one signal that reaches exactly the box. Nothing inside
//! reaches it (steps/landlock.rs scopes the command's signals; it is not dumpable). It has a name of its own:
//! who ends programs by ours does not end it first. Fails closed: a keeper that ends ends the box (watch.rs).
//! Source: kill(2), pid -1; kernel/fork.c, copy_process: a process with a signal pending adds no child.
//! Read next: alone.rs.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::init;
use crate::report::Refusal;
use crate::steps::{fds, seccomp};
use crate::sys;

/// As P1 holds it. Its end of the pipe closes with P1, however that ends.
pub struct Keeper {
    pub pid: libc::pid_t,
    _held: OwnedFd,
}

impl Keeper {
    /// In P1, in its domain, wiped, before its own filter: that allows no fork. P2 exists already, so it has
    /// no copy of the pipe.
    pub fn start() -> Result<Keeper, Refusal> {
        let failed = |e: std::io::Error| Refusal::new("fork_failed", "keeper").io(&e);
        let supervisor = supervisor()?;
        let (ended, held) = sys::pipe().map_err(failed)?;
        // SAFETY: P1 has one thread.
        match unsafe { sys::fork_into(0) }.map_err(failed)? {
            0 => {
                drop(held);
                keep(ended.as_raw_fd(), supervisor.as_raw_fd())
            }
            pid => Ok(Keeper { pid, _held: held }),
        }
    }

    /// It got the signal that ended the box; afterwards P1's only children are those of the command.
    pub fn reap(&self) {
        // SAFETY: our own child; no status is asked for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
    }
}

/// P0, which is still our parent once it is held.
fn supervisor() -> Result<OwnedFd, Refusal> {
    // SAFETY: no pointers; the descriptor is owned at once.
    unsafe {
        let parent = libc::getppid();
        let fd = sys::check(libc::syscall(libc::SYS_pidfd_open, parent, 0))
            .map_err(|e| Refusal::new("fork_failed", "supervisor").io(&e))?;
        let fd = OwnedFd::from_raw_fd(fd as RawFd);
        if libc::getppid() == parent {
            Ok(fd)
        } else {
            Err(init::gone())
        }
    }
}

fn keep(ended: RawFd, supervisor: RawFd) -> ! {
    let ready = || -> std::io::Result<()> {
        sys::prctl(libc::PR_SET_NAME, c"box-keeper".as_ptr() as u64)?;
        // A copy of the caller's pipes would hold them open, and one of P0's would hide its end.
        fds::close_all_but(ended, supervisor)?;
        seccomp::install("init")
    };
    if ready().is_ok() {
        sys::shed_code();
        wait(&[ended, supervisor]);
        // SAFETY: no pointers. P1's domain, which is checked before it forks, is all that is reached.
        unsafe { libc::kill(-1, libc::SIGKILL) };
    }
    // SAFETY: no destructor of P1's may run in its copy. P1 sees our end, if it is there.
    unsafe { libc::_exit(1) }
}

/// Until one of them has ended.
fn wait(fds: &[RawFd; 2]) {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: the array lives through the call.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        if ready > 0 || (ready < 0 && sys::errno() != libc::EINTR) {
            return;
        }
    }
}
