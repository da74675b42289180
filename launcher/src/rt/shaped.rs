//! C functions that differ from the system call behind them.
//!
//! Owns those differences: calls that one of our architectures lacks, and answers
//! that the kernel gives elsewhere. Source: "C library/kernel differences" of each man
//! page. What C lays out in its own way: `directory.rs`, `tty.rs`, `signals.rs`.

use std::ptr::{addr_of_mut, null, null_mut};

use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, nfds_t, pid_t, pollfd, rlimit};
use libc::{size_t, ssize_t, stat as Stat, stat64 as Stat64, timespec};

use super::{answer, calls, fail, raw, start};

/// open(2); aarch64 has openat only.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's path; without O_CREAT the mode is not read.
    unsafe { calls::openat(libc::AT_FDCWD, path, flags, mode) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as above.
    unsafe { open(path, flags, mode) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, to: *mut Stat) -> c_int {
    // SAFETY: the caller's path and structure.
    unsafe { calls::fstatat(libc::AT_FDCWD, path, to, 0) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, to: *mut Stat64) -> c_int {
    // SAFETY: as above.
    unsafe { calls::fstatat64(libc::AT_FDCWD, path, to, 0) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn lstat64(path: *const c_char, to: *mut Stat64) -> c_int {
    // SAFETY: as above.
    unsafe { calls::fstatat64(libc::AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's path. faccessat(2): the call itself takes no flags.
    answer(unsafe { raw(libc::SYS_faccessat, [libc::AT_FDCWD as usize, path as usize, mode as usize]) }) as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's path.
    answer(unsafe { raw(libc::SYS_fchmodat, [libc::AT_FDCWD as usize, path as usize, mode as usize]) }) as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, to: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: the caller's path and buffer.
    unsafe { calls::readlinkat(libc::AT_FDCWD, path, to, size) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: the caller's times, or null; a null path stands for the descriptor itself.
    unsafe { calls::utimensat(fd, null(), times, 0) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
    let arguments = [fd as usize, buffer as usize, size, flags as usize];
    // SAFETY: the caller's buffer; a null address is not written.
    answer(unsafe { raw(libc::SYS_recvfrom, arguments) })
}

/// poll(2); aarch64 has ppoll only.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let ms = c_long::from(timeout_ms);
    let mut timeout = timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let timeout = if timeout_ms < 0 { null_mut() } else { addr_of_mut!(timeout) };
    // SAFETY: the caller's array; the time lives through the call; a null mask changes none.
    answer(unsafe { raw(libc::SYS_ppoll, [fds as usize, count as usize, timeout as usize]) }) as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pause() -> c_int {
    // SAFETY: nothing is polled.
    unsafe { poll(null_mut(), 0, -1) }
}

/// The error is the answer, not errno.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn clock_nanosleep(clock: c_int, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int {
    let arguments = [clock as usize, flags as usize, time as usize, left as usize];
    // SAFETY: the caller's structures.
    let kernel = unsafe { raw(libc::SYS_clock_nanosleep, arguments) };
    kernel.wrapping_neg() as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    let arguments = [pid as usize, status as usize, options as usize];
    // SAFETY: the caller's status, or null; no resource usage is asked for.
    answer(unsafe { raw(libc::SYS_wait4, arguments) }) as pid_t
}

#[cfg_attr(bare, no_mangle)]
pub extern "C" fn _exit(code: c_int) -> ! {
    loop {
        // SAFETY: no pointers; does not come back.
        unsafe { raw(libc::SYS_exit_group, [code as usize]) };
    }
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn getpgrp() -> pid_t {
    // SAFETY: no pointers; of the caller itself this cannot fail.
    unsafe { raw(libc::SYS_getpgid, [0]) as pid_t }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn getrlimit(resource: c_uint, to: *mut rlimit) -> c_int {
    // SAFETY: the caller's structure; no new limit is given.
    answer(unsafe { raw(libc::SYS_prlimit64, [0, resource as usize, 0, to as usize]) }) as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: the caller's structure; the old limit is not asked for.
    answer(unsafe { raw(libc::SYS_prlimit64, [0, resource as usize, limit as usize]) }) as c_int
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn sysconf(name: c_int) -> c_long {
    match name {
        libc::_SC_PAGESIZE => start::page_bytes() as c_long,
        libc::_SC_CLK_TCK => start::ticks_per_second() as c_long,
        _ => fail(libc::EINVAL) as c_long,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn limits_files_and_constants_are_those_of_the_c_library() {
        // SAFETY: structures are plain data that live through the calls.
        unsafe {
            let (mut ours, mut theirs): (rlimit, rlimit) = (std::mem::zeroed(), std::mem::zeroed());
            assert_eq!(
                (getrlimit(libc::RLIMIT_NOFILE, &mut ours), libc::getrlimit(libc::RLIMIT_NOFILE, &mut theirs)),
                (0, 0)
            );
            assert_eq!((ours.rlim_cur, ours.rlim_max), (theirs.rlim_cur, theirs.rlim_max));
            let (mut a, mut b): (Stat, Stat) = (std::mem::zeroed(), std::mem::zeroed());
            assert_eq!((stat(c"/bin/sh".as_ptr(), &mut a), libc::stat(c"/bin/sh".as_ptr(), &mut b)), (0, 0));
            assert_eq!((a.st_ino, a.st_size, a.st_mtime), (b.st_ino, b.st_size, b.st_mtime));
            assert_eq!((access(c"/bin/sh".as_ptr(), libc::X_OK), access(c"/none".as_ptr(), libc::F_OK)), (0, -1));
            for name in [libc::_SC_PAGESIZE, libc::_SC_CLK_TCK] {
                assert_eq!(sysconf(name), libc::sysconf(name));
            }
            assert_eq!((getpgrp(), sysconf(-1)), (libc::getpgrp(), -1));
        }
    }

    #[test]
    fn waiting_ends_by_time_or_by_what_is_waited_for() {
        // SAFETY: the structures live through the calls.
        unsafe {
            let began = Instant::now();
            assert_eq!(poll(null_mut(), 0, 1020), 0);
            assert!(began.elapsed() >= Duration::from_millis(1020));
            let mut ends = [0; 2];
            assert_eq!(calls::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            assert_eq!(calls::write(ends[1], c"x".as_ptr().cast(), 1), 1);
            let mut ready = pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 };
            assert_eq!((poll(&mut ready, 1, -1), ready.revents), (1, libc::POLLIN));
            ends.iter().for_each(|end| assert_eq!(calls::close(*end), 0));
            let short = timespec { tv_sec: 0, tv_nsec: 1000 };
            assert_eq!(clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &short, null_mut()), 0);
            assert_eq!(clock_nanosleep(99, 0, &short, null_mut()), libc::EINVAL);
            assert_eq!(waitpid(1, null_mut(), libc::WNOHANG), -1);
            assert_eq!(*crate::rt::__errno_location(), libc::ECHILD);
        }
    }
}
