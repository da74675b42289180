//! Messages with descriptors, between a program inside, its supervisor and the supervisor's own.
//!
//! Owns sending and receiving: sequenced packets, never blocking on the side of a supervisor, and
//! every descriptor that came is owned at once. Source: unix(7), "Ancillary messages".

use std::io;
use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::sys::{self, check};

/// Fixed ones and those that the command keeps.
pub const MAX_FDS: usize = 80;
/// As many as the kernel takes at once (include/net/scm.h): it would close the others here (see `discard`).
const SCM_MAX_FD: usize = 253;

#[repr(align(8))]
struct Room([u8; ROOM]);
const ROOM: usize = SCM_MAX_FD * size_of::<RawFd>() + 32;

pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array lives through the call; both descriptors are owned at once.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        check(i64::from(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// One message that is there, its true length, and the descriptors that came with it. What a program in
/// the box may have sent goes to `discard`, and nowhere else.
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut room = Room([0; ROOM]);
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut fds = vec![];
    // SAFETY: all buffers outlive recvmsg; control data is read only within the headers that the
    // kernel wrote; a received descriptor is owned at once.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (&mut iov, 1);
        (msg.msg_control, msg.msg_controllen) = (room.0.as_mut_ptr().cast(), ROOM as _);
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;
        let size = check(libc::recvmsg(fd, &mut msg, flags) as i64)?;
        let mut header = libc::CMSG_FIRSTHDR(&msg);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let got = (0..bytes / size_of::<RawFd>()).map(|at| std::ptr::read_unaligned(data.add(at)));
                fds.extend(got.map(|fd| OwnedFd::from_raw_fd(fd)));
            }
            header = libc::CMSG_NXTHDR(&msg, header);
        }
        Ok((size as usize, fds))
    }
}

/// Sleeps until the other end has said a word, or is gone.
pub fn wait_for_word(fd: RawFd) {
    let mut word = 0u8;
    // SAFETY: one byte of room, which outlives the call.
    while unsafe { libc::recv(fd, std::ptr::addr_of_mut!(word).cast(), 1, 0) } < 0 && sys::errno() == libc::EINTR {}
}

/// Closes what came out of a box, without waiting for it.
///
/// The last close of a socket with SO_LINGER sleeps for as long as its maker said, with our signals
/// blocked; not in a process that is ending (net/ipv4/af_inet.c, inet_release). So one is made that holds them
/// too, and ended after ours are closed. A connection is such a descriptor: messages wait in it.
/// Where none can be made they are kept, and `burdened` tries again.
pub fn discard(fds: Vec<OwnedFd>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(fds);
    close_with_help(&mut kept);
}

static KEPT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// True while descriptors that came out of the box cannot be closed: whoever takes more then has none left for
/// the record and the comparison at the end.
pub fn burdened() -> bool {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    close_with_help(&mut kept);
    !kept.is_empty()
}

/// For a copy of the process that has closed all that was open.
pub fn begin_anew() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *kept).into_iter().for_each(std::mem::forget);
}

fn close_with_help(fds: &mut Vec<OwnedFd>) {
    if fds.is_empty() {
        return;
    }
    // SAFETY: P0 and its copies have one thread by now; the child only waits for its end.
    match unsafe { sys::fork_into(0) } {
        Ok(0) => loop {
            // SAFETY: takes no pointer.
            unsafe { libc::pause() };
        },
        Ok(child) => {
            fds.clear();
            // SAFETY: no pointers; nobody else reaps this child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), libc::__WALL);
            }
        }
        Err(_) => {}
    }
}

pub fn send(fd: RawFd, bytes: &[u8], fds: &[RawFd], wait: bool) -> io::Result<()> {
    let mut room = Room([0; ROOM]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    if fds.len() > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    // SAFETY: every pointer outlives sendmsg; the control data is written inside `room`, whose size
    // was checked.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (&mut iov, 1);
        if !fds.is_empty() {
            let size = std::mem::size_of_val(fds) as u32;
            msg.msg_control = room.0.as_mut_ptr().cast();
            msg.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&msg);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size as usize);
        }
        let flags = libc::MSG_NOSIGNAL | if wait { 0 } else { libc::MSG_DONTWAIT };
        check(libc::sendmsg(fd, &msg, flags) as i64).map(drop)
    }
}
