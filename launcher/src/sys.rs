//! Thin, checked wrappers of the system calls that no crate of ours covers.
//!
//! Owns every raw `syscall` of the mount API, pidfds and processes; each returns
//! `io::Result`, so a kernel that answers ENOSYS refuses the launch like any
//! other error. Constants that libc lacks are given with their header.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;

// linux/mount.h
pub const OPEN_TREE_CLONE: u32 = 1;
pub const AT_RECURSIVE: u32 = 0x8000;
const AT_EMPTY_PATH: u32 = 0x1000;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
pub const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub const MOUNT_ATTR_NODEV: u64 = 0x4;
pub const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
// linux/openat2.h
pub const RESOLVE_NO_XDEV: u64 = 0x1;
pub const RESOLVE_NO_MAGICLINKS: u64 = 0x2;
pub const RESOLVE_NO_SYMLINKS: u64 = 0x4;
pub const RESOLVE_BENEATH: u64 = 0x8;
pub const RESOLVE_IN_ROOT: u64 = 0x10;

/// What a symbolic link says. readlink(2): at most PATH_MAX bytes.
pub fn link_target(dir: RawFd, name: &CStr) -> io::Result<Vec<u8>> {
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: name and buffer live through the call, which writes at most the length given.
    let size = unsafe { libc::readlinkat(dir, name.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    target.truncate(check(size as i64)? as usize);
    Ok(target)
}

pub fn cstr(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Turns the C convention (-1 and errno) into a result.
pub fn check(ret: i64) -> io::Result<i64> {
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ret)
}

/// Reads a file from its start and leaves its offset alone: whoever has the same description, the
/// sender of a memfd and all others that it was sent to, moves that while we read.
pub struct FromStart<'a> {
    file: &'a File,
    at: i64,
}

impl<'a> FromStart<'a> {
    pub fn of(file: &'a File) -> Self {
        Self { file, at: 0 }
    }
}

impl io::Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (fd, room) = (self.file.as_raw_fd(), buffer.len());
        // SAFETY: the kernel writes at most as much as the buffer holds.
        let got = check(unsafe { libc::syscall(libc::SYS_pread64, fd, buffer.as_mut_ptr(), room, self.at) })?;
        self.at += got;
        Ok(got as usize)
    }
}

pub fn owned(ret: i64) -> io::Result<OwnedFd> {
    let fd = check(ret)? as RawFd;
    // SAFETY: the kernel just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// openat2(2): path resolution that can forbid symbolic and magic links.
pub fn openat2(dir: RawFd, path: &str, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    openat2_c(dir, &cstr(path)?, flags, resolve)
}

/// The same for a name that may be no UTF-8.
pub fn openat2_c(dir: RawFd, path: &CStr, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    let how = OpenHow { flags: (flags | libc::O_CLOEXEC) as u64, mode: 0, resolve };
    // SAFETY: path and how outlive the call; the size is that of `how`.
    owned(unsafe { libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), &how, std::mem::size_of::<OpenHow>()) })
}

/// An O_PATH descriptor of a canonical host path; a symbolic link anywhere in it is ELOOP.
pub fn open_host(path: &str) -> io::Result<OwnedFd> {
    openat2(libc::AT_FDCWD, path, libc::O_PATH | libc::O_NOFOLLOW, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
}

/// open_tree(2) with OPEN_TREE_CLONE: a detached copy of the mount at `fd`.
pub fn clone_tree(fd: RawFd, recursive: bool) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | AT_EMPTY_PATH | libc::O_CLOEXEC as u32 | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the empty string is static; flags ask for no other memory.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, fd, c"".as_ptr(), flags) })
}

/// The same by name, in a directory of a file system that we have just made.
pub fn clone_tree_at(dir: RawFd, name: &str) -> io::Result<OwnedFd> {
    let name = cstr(name)?;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_SYMLINK_NOFOLLOW as u32;
    // SAFETY: name outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, dir, name.as_ptr(), flags) })
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// mount_setattr(2): only ever adds flags, so locked ones of the host stay.
pub fn set_attrs(fd: RawFd, attrs: u64, recursive: bool, userns: Option<RawFd>) -> io::Result<()> {
    let attr = MountAttr { attr_set: attrs, attr_clr: 0, propagation: 0, userns_fd: userns.unwrap_or(0) as u64 };
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: attr outlives the call; the size is that of `attr`.
    let ret = unsafe {
        libc::syscall(libc::SYS_mount_setattr, fd, c"".as_ptr(), flags, &attr, std::mem::size_of::<MountAttr>())
    };
    check(ret).map(drop)
}

/// move_mount(2) of a detached mount onto the object behind `target`.
pub fn attach(mount: RawFd, target: RawFd) -> io::Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both strings are static; descriptors are only borrowed.
    check(unsafe { libc::syscall(libc::SYS_move_mount, mount, c"".as_ptr(), target, c"".as_ptr(), flags) }).map(drop)
}

/// The same by name, in a directory of a file system that we have just made.
pub fn attach_at(mount: RawFd, dir: RawFd, name: &str) -> io::Result<()> {
    let name = cstr(name)?;
    // SAFETY: both strings outlive the call. Without MOVE_MOUNT_T_SYMLINKS a link is not followed.
    check(unsafe {
        libc::syscall(libc::SYS_move_mount, mount, c"".as_ptr(), dir, name.as_ptr(), MOVE_MOUNT_F_EMPTY_PATH)
    })
    .map(drop)
}

/// One option of a file system under construction: `None` is a flag.
pub type FsOption<'a> = (&'a str, Option<&'a str>);

/// fsopen(2), fsconfig(2), fsmount(2): a detached new file system.
pub fn new_fs(kind: &str, options: &[FsOption], attrs: u64) -> io::Result<OwnedFd> {
    let kind = cstr(kind)?;
    // SAFETY: kind outlives the call.
    let fs = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })?;
    for (key, value) in options {
        let key = cstr(key)?;
        let value = value.map(cstr).transpose()?;
        let command = if value.is_some() { FSCONFIG_SET_STRING } else { FSCONFIG_SET_FLAG };
        let pointer = value.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());
        // SAFETY: key and value outlive the call; a flag takes a null value.
        check(unsafe { libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), command, key.as_ptr(), pointer, 0) })?;
    }
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: CMD_CREATE takes null key and value.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), FSCONFIG_CMD_CREATE, null, null, 0) })?;
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), FSMOUNT_CLOEXEC, attrs) })
}

/// fstat of a descriptor, O_PATH included.
pub fn fstat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data; the kernel fills it on success.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: st outlives the call.
    check(i64::from(unsafe { libc::fstat(fd, &mut st) }))?;
    Ok(st)
}

/// clone(2) without a new stack: a fork with namespaces. Returns 0 in the child.
///
/// # Safety
/// No other thread holds a lock at this moment, or takes one while the call lasts: the child has its
/// copy of every lock, and nobody who would let go of it. True where there is one thread, or where the
/// others use no heap.
pub unsafe fn fork_into(namespaces: i32) -> io::Result<libc::pid_t> {
    let flags = namespaces | libc::SIGCHLD;
    crate::clock::before_fork();
    // SAFETY: a null stack means the copy of ours, as in fork; no tid or tls pointer is asked for.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    crate::clock::after_fork(pid == 0);
    check(pid).map(|p| p as libc::pid_t)
}

/// Makes room for `more` descriptors besides those that are open; `open` is one of them. A table that two threads share grows
/// only after a grace period of RCU, 7 ms (expand_fdtable in fs/file.c). Where the limit is too low it
/// grows when it must.
pub fn reserve_files(open: RawFd, more: usize) {
    // SAFETY: no pointers; both copies are ours and closed at once.
    unsafe {
        let next = libc::fcntl(open, libc::F_DUPFD_CLOEXEC, 0);
        let last = libc::fcntl(next, libc::F_DUPFD_CLOEXEC, next + more as i32);
        libc::close(last);
        libc::close(next);
    }
}

/// The error number of the call before.
pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// futex(2): waits while the word has this value; may come back early.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    let forever = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives through the call; no timeout is read.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, forever)
    };
}

/// The same, for so long at most.
pub fn futex_wait_for(word: &AtomicU32, value: u32, most: std::time::Duration) {
    let most = libc::timespec { tv_sec: most.as_secs() as libc::time_t, tv_nsec: most.subsec_nanos().into() };
    // SAFETY: the word and the time live through the call.
    unsafe {
        let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), how, value, std::ptr::addr_of!(most))
    };
}

pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

/// memfd_create(2), "File sealing": bytes that nobody can change any more.
pub fn sealed_memfd(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::Write;
    const SEALS: i32 = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is static; the descriptor is owned at once.
    let fd = owned(unsafe { libc::syscall(libc::SYS_memfd_create, c"stockade-request".as_ptr(), flags) })?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    // SAFETY: F_ADD_SEALS takes an integer.
    check(i64::from(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }))?;
    Ok(file.into())
}

/// pipe2(2), close-on-exec: the reading and the writing end.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array lives through the call; both descriptors are owned at once.
    unsafe {
        check(i64::from(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// The id of the mount behind a descriptor. Source: statx(2), STATX_MNT_ID.
pub fn mount_id(fd: RawFd) -> io::Result<u64> {
    statx_mount_id(fd, c"", libc::AT_EMPTY_PATH)
}

/// The same for a path; a symbolic link is looked at, not followed, with the flag for it.
pub fn statx_mount_id(dir: RawFd, path: &std::ffi::CStr, flags: i32) -> io::Result<u64> {
    // SAFETY: statx is plain data; path lives through the call.
    unsafe {
        let mut stx: libc::statx = std::mem::zeroed();
        let flags = flags | libc::AT_STATX_DONT_SYNC;
        check(i64::from(libc::statx(dir, path.as_ptr(), flags, libc::STATX_MNT_ID, &mut stx)))?;
        Ok(stx.stx_mnt_id)
    }
}

/// The mount id of a path that is the root of a mount; nothing where no mount hangs on it.
/// statx(2), STATX_ATTR_MOUNT_ROOT (Linux 5.8).
pub fn statx_mount_root(path: &CStr) -> io::Result<Option<u64>> {
    const MOUNT_ROOT: u64 = 0x2000;
    // SAFETY: statx is plain data; path lives through the call.
    unsafe {
        let mut stx: libc::statx = std::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_DONT_SYNC;
        check(i64::from(libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_MNT_ID, &mut stx)))?;
        Ok((stx.stx_attributes & MOUNT_ROOT != 0).then_some(stx.stx_mnt_id))
    }
}

/// Writes a whole small file (id maps, setgroups) in one call, as the kernel wants it.
pub fn write_file(path: &str, text: &str) -> io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// rename(2) between directories; what has the new name is replaced.
pub fn rename(from: RawFd, name: &CStr, to: RawFd, new: &CStr) -> io::Result<()> {
    renameat2(from, name, to, new, 0)
}

/// renameat2(2), RENAME_NOREPLACE: a name that exists is EEXIST, never replaced.
pub fn rename_to_free(from: RawFd, name: &CStr, to: RawFd, new: &CStr) -> io::Result<()> {
    renameat2(from, name, to, new, libc::RENAME_NOREPLACE)
}

/// renameat2(2), RENAME_EXCHANGE: each of two names of a directory gets what the other had, in one step.
pub fn exchange(dir: RawFd, one: &CStr, other: &CStr) -> io::Result<()> {
    renameat2(dir, one, dir, other, libc::RENAME_EXCHANGE)
}

fn renameat2(from: RawFd, name: &CStr, to: RawFd, new: &CStr, flags: u32) -> io::Result<()> {
    // SAFETY: both names outlive the call.
    check(unsafe { libc::syscall(libc::SYS_renameat2, from, name.as_ptr(), to, new.as_ptr(), flags) }).map(drop)
}

/// chmod(2) of the very object that an O_PATH descriptor holds; fchmod refuses those, hence the name in /proc.
pub fn chmod_held(fd: RawFd, mode: libc::mode_t) -> io::Result<()> {
    let path = cstr(&format!("/proc/self/fd/{fd}"))?;
    // SAFETY: path outlives the call.
    check(i64::from(unsafe { libc::chmod(path.as_ptr(), mode) })).map(drop)
}

pub fn unlink(dir: RawFd, name: &CStr) -> io::Result<()> {
    // SAFETY: name outlives the call.
    check(unsafe { libc::syscall(libc::SYS_unlinkat, dir, name.as_ptr(), 0) }).map(drop)
}

/// waitid(2): until a child is dead. It stays to be reaped, so its number is not given out again.
pub fn await_death(child: libc::pid_t) -> io::Result<()> {
    death_of(child).map(drop)
}

/// The same; returns the signal that ended it, or 0.
pub fn death_of(child: libc::pid_t) -> io::Result<i32> {
    // SAFETY: siginfo is plain data that lives through the call, and of a child in the end.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let (place, no_usage) = (std::ptr::addr_of_mut!(info), std::ptr::null::<libc::rusage>());
        let flags = libc::WEXITED | libc::WNOWAIT;
        check(libc::syscall(libc::SYS_waitid, libc::P_PID, child, place, flags, no_usage))?;
        Ok(if info.si_code == libc::CLD_EXITED { 0 } else { info.si_status() })
    }
}

/// Whether nobody holds the other end any more: unix_poll in the kernel's net/unix/af_unix.c.
pub fn hung_up(socket: RawFd) -> bool {
    let mut one = libc::pollfd { fd: socket, events: 0, revents: 0 };
    // SAFETY: one entry that lives through the call, which does not wait.
    unsafe { libc::poll(&raw mut one, 1, 0) > 0 && one.revents & libc::POLLHUP != 0 }
}

/// Until it is on the disk, not only written.
pub fn fsync(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_fsync, fd) }).map(drop)
}

/// flock(2) without waiting; false when somebody else has it.
pub fn try_lock(fd: RawFd, how: i32) -> io::Result<bool> {
    // SAFETY: no pointers.
    match check(i64::from(unsafe { libc::flock(fd, how | libc::LOCK_NB) })) {
        Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        other => other.map(|_| true),
    }
}

/// openat(2) that makes the file when the flags say so; no link at its end is followed.
pub fn openat(dir: RawFd, name: &CStr, flags: i32, mode: libc::mode_t) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: name outlives the call.
    owned(i64::from(unsafe { libc::openat(dir, name.as_ptr(), flags, mode) }))
}

/// A directory for use, by a name of one part or a whole path.
pub fn open_dir(at: RawFd, name: &CStr) -> io::Result<OwnedFd> {
    openat(at, name, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Mode 0700; one that is there will do.
pub fn make_dir(at: RawFd, name: &CStr) -> io::Result<()> {
    // SAFETY: name outlives the call.
    match check(i64::from(unsafe { libc::mkdirat(at, name.as_ptr(), 0o700) })) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

/// The directory of these names below a path, made where it is missing.
pub fn open_made(base: &str, names: [&str; 2]) -> io::Result<OwnedFd> {
    let mut here = open_dir(libc::AT_FDCWD, &cstr(base)?)?;
    for name in names {
        let name = cstr(name)?;
        make_dir(here.as_raw_fd(), &name)?;
        here = open_dir(here.as_raw_fd(), &name)?;
    }
    Ok(here)
}

pub fn prctl(option: i32, arg: u64) -> io::Result<()> {
    // SAFETY: the options used here take integers only.
    check(i64::from(unsafe { libc::prctl(option, arg, 0, 0, 0) })).map(drop)
}

/// Blocks or unblocks every signal; the old mask comes back.
pub fn block_all_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain data that live through the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

/// Sets the mask of this thread; the old one comes back.
pub fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both sets are plain data that live through the call.
    unsafe {
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, mask, &mut old);
        old
    }
}

/// A signalfd for every signal; they must be blocked.
pub fn signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set is plain data that lives through the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        owned(i64::from(libc::signalfd(-1, &all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)))
    }
}

/// The next queued signal of a signalfd, if there is one.
pub fn read_signal(fd: RawFd) -> Option<libc::signalfd_siginfo> {
    // SAFETY: siginfo is plain data of the size given.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        let got = libc::read(fd, std::ptr::addr_of_mut!(info).cast(), size);
        (got == size as isize).then_some(info)
    }
}

extern "C" {
    /// First and last byte of the program's own read-only pages (linker script).
    static __executable_start: u8;
    static etext: u8;
}

/// Gives back the pages of the set-up code and of the plan: a supervisor waits for hours and
/// needs a few. They come back from the page cache when they are touched.
/// Source: madvise(2), MADV_DONTNEED on a private file mapping.
pub fn shed_code() {
    crate::rt::trim();
    let (from, to) = (std::ptr::addr_of!(__executable_start) as usize, std::ptr::addr_of!(etext) as usize);
    let page = 4096;
    let (from, to) = (from.next_multiple_of(page), to & !(page - 1));
    if from < to {
        // SAFETY: the range holds only pages that are mapped from the program file and
        // never written, so their content is the file's before and after.
        unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn a_file_is_read_whole_whoever_moves_its_offset() {
        let mut file = File::from(sealed_memfd(b"plan").unwrap());
        for offset in [0, 2, 4, 900] {
            file.seek(io::SeekFrom::Start(offset)).unwrap();
            let mut bytes = vec![];
            FromStart::of(&file).read_to_end(&mut bytes).unwrap();
            assert_eq!((bytes.as_slice(), file.stream_position().unwrap()), (b"plan".as_slice(), offset));
        }
    }
}
