//! What a second thread of P1 does while the main one goes on.
//!
//! Owns the thread of a box with a network namespace of its own (step 3): it makes
//! that namespace while the main thread mounts (0.9 ms on two cores), and lets the
//! old root go (the end of step 6) while the main thread forks and prepares. It has
//! ended before P1 opens the gate. From its last order on it uses no heap, so P1
//! may fork beside it. Fails closed: what fails here comes out of `join` and `end`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::thread::JoinHandle;

use crate::report::Refusal;
use crate::steps::mounts;
use crate::{processors, sys};

/// What both know. Words and not a channel: a channel has a heap.
struct Shared {
    reached: AtomicU32,
    /// The network namespace, or its errno, negative.
    net: AtomicI32,
    /// errno of the old root's end.
    left: AtomicI32,
}

static SHARED: Shared = Shared { reached: AtomicU32::new(0), net: AtomicI32::new(0), left: AtomicI32::new(0) };

/// Its id: the first one that a pid namespace gives out after that of process 1, pid_namespaces(7).
const FIRST: libc::pid_t = 2;
/// Descriptors that do not belong to a row.
const SPARE: usize = 64;

/// Said by the thread: the namespace is there, or is not to be had.
const MADE: u32 = 1;
/// Said by P1: the new root is entered.
const ENTERED: u32 = 2;
/// Said by P1: the command's process exists.
const FORKED: u32 = 3;

impl Shared {
    fn reach(&self, place: u32) {
        self.reached.store(place, Ordering::Release);
        sys::futex_wake(&self.reached);
    }

    fn wait_for(&self, place: u32) {
        loop {
            let reached = self.reached.load(Ordering::Acquire);
            if reached >= place {
                return;
            }
            sys::futex_wait(&self.reached, reached);
        }
    }
}

/// The thread, from P1's side.
pub struct Beside(JoinHandle<()>);

impl Beside {
    /// `control` is any open descriptor, `rows` those of the plan: P1 opens a few for each.
    pub fn start(control: RawFd, rows: usize) -> Result<Beside, Refusal> {
        sys::reserve_files(control, 2 * rows + SPARE);
        let fail = |e: io::Error| Refusal::new("namespace_denied", "net thread").io(&e);
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(body).map_err(fail)?;
        processors::start_elsewhere(FIRST).map_err(fail)?;
        Ok(Beside(thread))
    }

    /// Takes P1 into the namespace. Called in the new root: the thread takes that as its word to let
    /// the old one go, which is gone when `end` returns and not before.
    pub fn join_net(&self) -> Result<(), Refusal> {
        SHARED.wait_for(MADE);
        let made = SHARED.net.load(Ordering::Relaxed);
        let fail = |e: io::Error| Refusal::new("namespace_denied", "net").io(&e);
        if made < 0 {
            return Err(fail(io::Error::from_raw_os_error(-made)));
        }
        // SAFETY: the thread has given this descriptor up.
        let net = unsafe { OwnedFd::from_raw_fd(made) };
        // SAFETY: no pointers.
        sys::check(i64::from(unsafe { libc::setns(net.as_raw_fd(), libc::CLONE_NEWNET) })).map_err(fail)?;
        SHARED.reach(ENTERED);
        Ok(())
    }

    /// The fork is done. Returns when the old root is gone, and the thread with it.
    pub fn end(self) -> Result<(), Refusal> {
        SHARED.reach(FORKED);
        self.0.join().map_err(|_| Refusal::new("pivot_denied", "thread"))?;
        match SHARED.left.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(mounts::not_left(&io::Error::from_raw_os_error(errno))),
        }
    }
}

fn body() {
    let net = make_net().map_or_else(|e| -e.raw_os_error().unwrap_or(libc::EIO), IntoRawFd::into_raw_fd);
    SHARED.net.store(net, Ordering::Relaxed);
    SHARED.reach(MADE);
    SHARED.wait_for(ENTERED);
    let left = mounts::umount_old_root().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
    SHARED.left.store(left, Ordering::Relaxed);
    // What a thread frees when it ends must not meet the fork.
    SHARED.wait_for(FORKED);
}

fn make_net() -> io::Result<File> {
    // SAFETY: unshare changes this thread only.
    sys::check(i64::from(unsafe { libc::unshare(libc::CLONE_NEWNET) }))?;
    loopback_up()?;
    File::open("/proc/thread-self/ns/net")
}

/// netdevice(7): SIOCSIFFLAGS on `lo`; local servers and daemons need it up.
fn loopback_up() -> io::Result<()> {
    // SAFETY: the request is plain data that lives through the calls; the socket is closed at once.
    unsafe {
        let socket =
            sys::check(i64::from(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)))? as RawFd;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let ret = sys::check(i64::from(libc::ioctl(socket, libc::SIOCSIFFLAGS, &request)));
        libc::close(socket);
        ret.map(drop)
    }
}
