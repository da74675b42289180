//! C functions that are a system call with the same arguments.
//!
//! Owns the table. Types are those of the libc crate; on the two 64-bit
//! architectures that we build for, the structures behind these pointers have the
//! kernel's own layout. Functions that differ from their call: `shaped.rs`, `signals.rs`.

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, gid_t, iovec, mode_t, msghdr, off_t, pid_t, rusage, size_t,
    sockaddr, socklen_t, ssize_t, stat as Stat, stat64 as Stat64, statx as Statx, timespec, uid_t, utsname,
};

use super::{answer, raw};

macro_rules! calls {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty = $number:ident;)*) => {$(
        /// # Safety
        /// As for the C function of this name.
        #[cfg_attr(bare, no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $answer {
            // SAFETY: the caller keeps the contract of the C function of this name.
            answer(unsafe { raw(libc::$number, [$($argument as usize),*]) }) as $answer
        }
    )*};
}

// Descriptors and files.
calls! {
    read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t = SYS_read;
    write(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t = SYS_write;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = SYS_writev;
    close(fd: c_int) -> c_int = SYS_close;
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = SYS_lseek;
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t = SYS_lseek;
    // Variadic in C, always with at most one further argument, which the ABI passes alike.
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int = SYS_fcntl;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = SYS_ioctl;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = SYS_openat;
    flock(fd: c_int, operation: c_int) -> c_int = SYS_flock;
    fchdir(fd: c_int) -> c_int = SYS_fchdir;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int = SYS_pipe2;
    fstat(fd: c_int, to: *mut Stat) -> c_int = SYS_fstat;
    fstat64(fd: c_int, to: *mut Stat64) -> c_int = SYS_fstat;
    fstatat(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int = SYS_newfstatat;
    fstatat64(dir: c_int, path: *const c_char, to: *mut Stat64, flags: c_int) -> c_int = SYS_newfstatat;
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut Statx) -> c_int = SYS_statx;
    readlinkat(dir: c_int, path: *const c_char, to: *mut c_char, size: size_t) -> ssize_t = SYS_readlinkat;
    symlinkat(to: *const c_char, dir: c_int, path: *const c_char) -> c_int = SYS_symlinkat;
    linkat(from: c_int, old: *const c_char, dir: c_int, name: *const c_char, flags: c_int) -> c_int = SYS_linkat;
    mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int = SYS_mkdirat;
    mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: c_ulong) -> c_int = SYS_mknodat;
    renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int = SYS_renameat;
    utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int = SYS_utimensat;
    umask(mask: mode_t) -> mode_t = SYS_umask;
}

// Processes, namespaces and what the kernel says about them.
calls! {
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = SYS_execve;
    kill(pid: pid_t, signal: c_int) -> c_int = SYS_kill;
    getpid() -> pid_t = SYS_getpid;
    getppid() -> pid_t = SYS_getppid;
    setpgid(pid: pid_t, group: pid_t) -> c_int = SYS_setpgid;
    getuid() -> uid_t = SYS_getuid;
    geteuid() -> uid_t = SYS_geteuid;
    getgid() -> gid_t = SYS_getgid;
    getegid() -> gid_t = SYS_getegid;
    getrusage(who: c_int, to: *mut rusage) -> c_int = SYS_getrusage;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = SYS_prctl;
    unshare(flags: c_int) -> c_int = SYS_unshare;
    setns(fd: c_int, kind: c_int) -> c_int = SYS_setns;
    sethostname(name: *const c_char, size: size_t) -> c_int = SYS_sethostname;
    uname(to: *mut utsname) -> c_int = SYS_uname;
    mount(source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void)
        -> c_int = SYS_mount;
    umount2(target: *const c_char, flags: c_int) -> c_int = SYS_umount2;
    getrandom(buffer: *mut c_void, size: size_t, flags: c_uint) -> ssize_t = SYS_getrandom;
    clock_gettime(clock: c_int, to: *mut timespec) -> c_int = SYS_clock_gettime;
}

// Memory.
calls! {
    mmap64(at: *mut c_void, size: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void = SYS_mmap;
    mremap(at: *mut c_void, old: size_t, new: size_t, flags: c_int) -> *mut c_void = SYS_mremap;
    munmap(at: *mut c_void, size: size_t) -> c_int = SYS_munmap;
    mprotect(at: *mut c_void, size: size_t, protection: c_int) -> c_int = SYS_mprotect;
    madvise(at: *mut c_void, size: size_t, advice: c_int) -> c_int = SYS_madvise;
}

// Sockets.
calls! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = SYS_socket;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int = SYS_socketpair;
    bind(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int = SYS_bind;
    listen(fd: c_int, backlog: c_int) -> c_int = SYS_listen;
    accept4(fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int = SYS_accept4;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, size: socklen_t) -> c_int = SYS_setsockopt;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = SYS_sendmsg;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = SYS_recvmsg;
}

/// syscall(2): the last of up to six arguments; what the caller did not give is not looked at.
///
/// # Safety
/// As for the call of this number.
#[cfg_attr(bare, no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: the caller's promise.
    answer(unsafe { raw(number, [a, b, c, d, e, f]) }) as c_long
}
