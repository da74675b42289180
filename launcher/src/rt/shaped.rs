//! C functions that differ from the system call behind them.
//!
//! Owns those differences: calls that one of our architectures lacks, structures
//! that C lays out in its own way (termios, directories), answers that the kernel
//! gives elsewhere. Source: the C library/kernel differences of each man page.

use std::ptr::{addr_of_mut, null, null_mut};

use libc::{c_char, c_int, c_long, c_uint, c_void, dirent64, mode_t, nfds_t, pid_t, pollfd, rlimit};
use libc::{size_t, ssize_t, stat as Stat, stat64 as Stat64, termios, timespec};

use super::{answer, calls, fail, raw, start};

/// open(2); aarch64 has openat only.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's path; without O_CREAT the mode is not read.
    unsafe { calls::openat(libc::AT_FDCWD, path, flags, mode) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as above.
    unsafe { open(path, flags, mode) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, to: *mut Stat) -> c_int {
    // SAFETY: the caller's path and structure.
    unsafe { calls::fstatat(libc::AT_FDCWD, path, to, 0) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, to: *mut Stat64) -> c_int {
    // SAFETY: as above.
    unsafe { calls::fstatat64(libc::AT_FDCWD, path, to, 0) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn lstat64(path: *const c_char, to: *mut Stat64) -> c_int {
    // SAFETY: as above.
    unsafe { calls::fstatat64(libc::AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's path. faccessat(2): the call itself takes no flags.
    answer(unsafe { raw(libc::SYS_faccessat, [libc::AT_FDCWD as usize, path as usize, mode as usize]) }) as c_int
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's path.
    answer(unsafe { raw(libc::SYS_fchmodat, [libc::AT_FDCWD as usize, path as usize, mode as usize]) }) as c_int
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, to: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: the caller's path and buffer.
    unsafe { calls::readlinkat(libc::AT_FDCWD, path, to, size) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: the caller's times, or null; a null path stands for the descriptor itself.
    unsafe { calls::utimensat(fd, null(), times, 0) }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
    let arguments = [fd as usize, buffer as usize, size, flags as usize];
    // SAFETY: the caller's buffer; a null address is not written.
    answer(unsafe { raw(libc::SYS_recvfrom, arguments) })
}

/// poll(2); aarch64 has ppoll only.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let ms = c_long::from(timeout_ms);
    let mut timeout = timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let timeout = if timeout_ms < 0 { null_mut() } else { addr_of_mut!(timeout) };
    // SAFETY: the caller's array; the time lives through the call; a null mask changes none.
    answer(unsafe { raw(libc::SYS_ppoll, [fds as usize, count as usize, timeout as usize]) }) as c_int
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pause() -> c_int {
    // SAFETY: nothing is polled.
    unsafe { poll(null_mut(), 0, -1) }
}

/// The error is the answer, not errno.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn clock_nanosleep(clock: c_int, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int {
    let arguments = [clock as usize, flags as usize, time as usize, left as usize];
    // SAFETY: the caller's structures.
    let kernel = unsafe { raw(libc::SYS_clock_nanosleep, arguments) };
    kernel.wrapping_neg() as c_int
}

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

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn getrlimit(resource: c_uint, to: *mut rlimit) -> c_int {
    // SAFETY: the caller's structure; no new limit is given.
    answer(unsafe { raw(libc::SYS_prlimit64, [0, resource as usize, 0, to as usize]) }) as c_int
}

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

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn getdents(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller's buffer.
    answer(unsafe { raw(libc::SYS_getdents64, [fd as usize, to as usize, size]) })
}

/// What opendir(3) hands out.
struct Directory {
    fd: c_int,
    at: usize,
    end: usize,
    entries: Entries,
}

#[repr(align(8))]
struct Entries([u8; 8192]);

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut Directory {
    // SAFETY: the caller's path.
    let fd = unsafe { open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0) };
    if fd < 0 {
        return null_mut();
    }
    Box::into_raw(Box::new(Directory { fd, at: 0, end: 0, entries: Entries([0; 8192]) }))
}

/// The kernel's record is the C structure. Null with errno untouched is the end.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn readdir64(dir: *mut Directory) -> *mut dirent64 {
    // SAFETY: the caller has it from opendir and lets nobody else use it meanwhile.
    let dir = unsafe { &mut *dir };
    if dir.at >= dir.end {
        // SAFETY: the buffer lives as long as the directory.
        let got = unsafe { getdents(dir.fd, dir.entries.0.as_mut_ptr().cast(), dir.entries.0.len()) };
        if got <= 0 {
            return null_mut();
        }
        (dir.at, dir.end) = (0, got as usize);
    }
    let entry: *mut dirent64 = dir.entries.0[dir.at..].as_mut_ptr().cast();
    // SAFETY: the kernel writes whole records, aligned to 8, up to `end`.
    dir.at += usize::from(unsafe { (*entry).d_reclen });
    entry
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn dirfd(dir: *mut Directory) -> c_int {
    // SAFETY: the caller has it from opendir.
    unsafe { (*dir).fd }
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn closedir(dir: *mut Directory) -> c_int {
    // SAFETY: the caller has it from opendir and uses it no more.
    unsafe { calls::close(Box::from_raw(dir).fd) }
}

/// `struct termios` of asm-generic/termbits.h: fewer characters, the speed in the flags.
#[repr(C)]
#[derive(Default)]
struct Settings {
    flags: [c_uint; 4],
    line: u8,
    characters: [u8; 19],
}

#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn tcgetattr(fd: c_int, to: *mut termios) -> c_int {
    let mut now = Settings::default();
    // SAFETY: the structure lives through the call.
    let ret = unsafe { calls::ioctl(fd, libc::TCGETS, addr_of_mut!(now).cast()) };
    if ret == 0 {
        // SAFETY: the caller's structure.
        let to = unsafe { &mut *to };
        [to.c_iflag, to.c_oflag, to.c_cflag, to.c_lflag] = now.flags;
        to.c_line = now.line;
        to.c_cc[..19].copy_from_slice(&now.characters);
    }
    ret
}

/// `when` is TCSANOW, TCSADRAIN or TCSAFLUSH: the requests follow each other alike.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn tcsetattr(fd: c_int, when: c_int, from: *const termios) -> c_int {
    // SAFETY: the caller's structure.
    let from = unsafe { &*from };
    let flags = [from.c_iflag, from.c_oflag, from.c_cflag, from.c_lflag];
    let mut new = Settings { flags, line: from.c_line, ..Settings::default() };
    new.characters.copy_from_slice(&from.c_cc[..19]);
    // SAFETY: the structure lives through the call.
    unsafe { calls::ioctl(fd, libc::TCSETS + when as libc::c_ulong, addr_of_mut!(new).cast()) }
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn isatty(fd: c_int) -> c_int {
    let mut now = Settings::default();
    // SAFETY: the structure lives through the call.
    c_int::from(unsafe { calls::ioctl(fd, libc::TCGETS, addr_of_mut!(now).cast()) } == 0)
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn tcgetpgrp(fd: c_int) -> pid_t {
    let mut group = 0;
    // SAFETY: the number lives through the call.
    match unsafe { calls::ioctl(fd, libc::TIOCGPGRP, addr_of_mut!(group).cast()) } {
        0 => group,
        _ => -1,
    }
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn tcsetpgrp(fd: c_int, mut group: pid_t) -> c_int {
    // SAFETY: the number lives through the call.
    unsafe { calls::ioctl(fd, libc::TIOCSPGRP, addr_of_mut!(group).cast()) }
}
