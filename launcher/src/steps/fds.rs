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

fn open_between(first: u32, last: u32) -> io::Result<Vec<u32>> {
    let numbers =
        std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.filter(|fd| (first..=last).contains(fd)).collect())
}

fn mark_each(first: u32, last: u32) -> io::Result<()> {
    for fd in open_between(first, last)? {
        // SAFETY: F_SETFD takes an integer. The directory's own descriptor is gone by now: EBADF is no failure.
        let ret = unsafe { libc::fcntl(fd as RawFd, libc::F_SETFD, libc::FD_CLOEXEC) };
        if ret < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EBADF) {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes everything but these two, 0 to 2 included.
pub fn close_all_but(one: RawFd, other: RawFd) -> io::Result<()> {
    let (low, high) = (i64::from(one.min(other)), i64::from(one.max(other)));
    let ranges = [(0, low - 1), (low + 1, high - 1), (high + 1, i64::from(u32::MAX))];
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        let (first, last) = (first as u32, last as u32);
        // SAFETY: no pointers, and nothing of ours is used by these numbers any more.
        let ret = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        sys::check(ret).map(drop).or_else(|_| close_each(first, last))?;
    }
    Ok(())
}

fn close_each(first: u32, last: u32) -> io::Result<()> {
    for fd in open_between(first, last)? {
        // SAFETY: as above.
        unsafe { libc::close(fd as RawFd) };
    }
    Ok(())
}

/// Without a mount namespace an address that is a path is one of the host: of local sockets the command
/// gets only such as cannot be aimed any more. Source: unix(7).
pub fn check_sockets(kept: &[RawFd]) -> Result<(), Refusal> {
    (0..=2).chain(kept.iter().copied()).try_for_each(|fd| match aimable(fd) {
        true => Err(Refusal::new("fds_denied", format!("descriptor {fd}"))
            .detail("got a local socket that can be connected to any path, expected a connected stream")),
        false => Ok(()),
    })
}

fn aimable(fd: RawFd) -> bool {
    if option(fd, libc::SO_DOMAIN) != Some(libc::AF_UNIX) {
        return false;
    }
    let stream = matches!(option(fd, libc::SO_TYPE), Some(libc::SOCK_STREAM | libc::SOCK_SEQPACKET));
    !stream || !(option(fd, libc::SO_ACCEPTCONN) == Some(1) || connected(fd))
}

/// None for what is no socket.
fn option(fd: RawFd, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut size = std::mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: value and size live through the call, which writes no more than that.
    let ret = unsafe {
        let (value, size) = (std::ptr::addr_of_mut!(value), std::ptr::addr_of_mut!(size));
        libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, name, value, size)
    };
    (ret == 0).then_some(value)
}

fn connected(fd: RawFd) -> bool {
    // SAFETY: the address is plain data; address and size live through the call.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        let mut size = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let (address, size) = (std::ptr::addr_of_mut!(address), std::ptr::addr_of_mut!(size));
        libc::syscall(libc::SYS_getpeername, fd, address, size) == 0
    }
}
