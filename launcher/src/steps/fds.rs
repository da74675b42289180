//! Step 8: only descriptors that the plan names reach the command.
//!
//! Owns closing the rest. Where close_range(2) is refused the list in
//! /proc/self/fd is closed one by one; where that fails too the launch is refused.

use std::io;
use std::os::fd::RawFd;

use crate::report::Refusal;
use crate::sys;

/// Marks everything but 0, 1, 2 and `kept` close-on-exec, and unmarks the kept ones.
pub fn close_others(kept: &[RawFd]) -> Result<(), Refusal> {
    (0..=2).chain(kept.iter().copied()).try_for_each(check)?;
    let fail = |e: &io::Error| Refusal::new("fds_denied", "descriptors").io(e);
    let mut from: u32 = 3;
    for fd in kept {
        keep(*fd).map_err(|e| Refusal::new("fds_denied", format!("descriptor {fd}")).io(&e))?;
        mark(from, (*fd as u32).saturating_sub(1)).map_err(|e| fail(&e))?;
        from = *fd as u32 + 1;
    }
    mark(from, u32::MAX).map_err(|e| fail(&e))
}

/// A directory (or a place in one) is the host's whole tree with the host's
/// mounts: `openat(0, "../..")` would pass every wall. A block device is a disk.
fn check(fd: RawFd) -> Result<(), Refusal> {
    let Ok(st) = sys::fstat(fd) else { return Ok(()) };
    // SAFETY: F_GETFL takes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let what = match st.st_mode & libc::S_IFMT {
        libc::S_IFDIR => "a directory",
        libc::S_IFBLK => "a block device",
        _ if flags & libc::O_PATH != 0 => "a path descriptor",
        _ => return Ok(()),
    };
    let expected = "expected a file, pipe, socket or terminal";
    Err(Refusal::new("fds_denied", format!("descriptor {fd}")).detail(format!("got {what}, {expected}")))
}

fn keep(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer; a closed descriptor is an error value.
    sys::check(i64::from(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })).map(drop)
}

/// Close-on-exec rather than closed: the descriptor that reports a failed exec must live until then.
fn mark(first: u32, last: u32) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: no pointers.
    let ret = unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) };
    sys::check(ret).map(drop).or_else(|_| mark_each(first, last))
}

fn mark_each(first: u32, last: u32) -> io::Result<()> {
    let open: Vec<u32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| (first..=last).contains(fd))
        .collect();
    for fd in open {
        // SAFETY: F_SETFD takes an integer. The directory's own descriptor is gone by now: EBADF is no failure.
        let ret = unsafe { libc::fcntl(fd as RawFd, libc::F_SETFD, libc::FD_CLOEXEC) };
        if ret < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EBADF) {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
