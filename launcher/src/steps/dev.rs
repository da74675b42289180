//! Step 5 and the process file system: private /dev, fresh /proc.
//!
//! Owns the device nodes a box gets (bound from the host, since a user
//! namespace can make none), its own pseudo-terminals and shared memory, and a
//! proc of its pid namespace whose kernel controls are read-only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::report::Refusal;
use crate::steps::mounts::{self, Root};
use crate::sys;

const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// /dev of six nodes, its own devpts, shm and queues. Read-only in the end: device
/// nodes stay writable.
pub fn devices(root: &mut Root, target: &str, shm_size_bytes: u64) -> Result<(), Refusal> {
    let fail = |what: &str, e: &io::Error| Refusal::new("dev_denied", format!("{target}/{what}")).io(e);
    let options = [("mode", Some("0755")), ("size", Some("65536"))];
    let dev = sys::new_fs("tmpfs", &options, sys::MOUNT_ATTR_NOSUID).map_err(|e| fail("", &e))?;
    root.put(&dev, target, true)?;
    let at = dev.as_raw_fd();
    for name in NODES {
        bind_node(at, name).map_err(|e| fail(name, &e))?;
    }
    console(at).map_err(|e| fail("console", &e))?;
    for (name, to) in LINKS {
        link_at(at, name, to).map_err(|e| fail(name, &e))?;
    }
    let noexec = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NOEXEC;
    // devpts(5) "newinstance" is the only kind since Linux 4.7.
    let pts = [("ptmxmode", Some("0666")), ("mode", Some("0620"))];
    fs_at(at, "pts", "devpts", &pts, noexec).map_err(|e| fail("pts", &e))?;
    let size = shm_size_bytes.to_string();
    let shm = [("mode", Some("1777")), ("size", Some(size.as_str()))];
    // No noexec: language run-times map code from shared memory.
    fs_at(at, "shm", "tmpfs", &shm, sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV).map_err(|e| fail("shm", &e))?;
    // mq_overview(7): the queues of the box's own ipc namespace, where Landlock can name them.
    fs_at(at, "mqueue", "mqueue", &[], noexec).map_err(|e| fail("mqueue", &e))?;
    // Made read-only at the end: granted devices are rows below it.
    root.seal_later(target, dev);
    Ok(())
}

fn bind_node(dev: RawFd, name: &str) -> io::Result<()> {
    let tree = sys::clone_tree_at(libc::AT_FDCWD, &format!("/dev/{name}"))?;
    if sys::fstat(tree.as_raw_fd())?.st_mode & libc::S_IFMT != libc::S_IFCHR {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    mounts::make_node_at(dev, name, libc::S_IFREG | 0o600)?;
    sys::attach_at(tree.as_raw_fd(), dev, name)
}

/// The terminal on standard input, output or error as /dev/console: it has no name in the box's
/// own devpts, and ttyname(3) looks for one below /dev. bubblewrap and systemd-nspawn do the same.
/// No terminal, or one whose name leads elsewhere: nothing. Nor for one that was lent for
/// writing or reading alone, which the name would open for both.
fn console(dev: RawFd) -> io::Result<()> {
    let Some(tree) = (0..=2).find_map(terminal) else { return Ok(()) };
    mounts::make_node_at(dev, "console", libc::S_IFREG | 0o600)?;
    sys::attach_at(tree.as_raw_fd(), dev, "console")
}

fn terminal(fd: RawFd) -> Option<OwnedFd> {
    let given = sys::fstat(fd).ok()?;
    // SAFETY: isatty and F_GETFL take no pointer.
    let (terminal, flags) = unsafe { (libc::isatty(fd) == 1, libc::fcntl(fd, libc::F_GETFL)) };
    // A master is no terminal to sit at: opening it makes a new pair (pts(4)).
    let master = given.st_rdev == libc::makedev(5, 2);
    if !terminal || master || flags & libc::O_ACCMODE != libc::O_RDWR {
        return None;
    }
    // A mount is cloned by its name in this namespace (open_tree(2) takes none of another's), so the
    // name is believed only when it leads to the device that the caller handed over. Cloned last: a
    // tree that is closed unused costs a grace period of RCU.
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let name = name.to_str().filter(|name| name.starts_with("/dev/"))?;
    let tree = sys::clone_tree_at(libc::AT_FDCWD, name).ok()?;
    let found = sys::fstat(tree.as_raw_fd()).ok()?;
    let same = (given.st_dev, given.st_ino, given.st_rdev) == (found.st_dev, found.st_ino, found.st_rdev);
    same.then_some(tree)
}

fn link_at(dev: RawFd, name: &str, to: &str) -> io::Result<()> {
    let (to, name) = (sys::cstr(to)?, sys::cstr(name)?);
    // SAFETY: both strings outlive the call.
    sys::check(i64::from(unsafe { libc::symlinkat(to.as_ptr(), dev, name.as_ptr()) })).map(drop)
}

fn fs_at(dir: RawFd, name: &str, kind: &str, options: &[sys::FsOption], attrs: u64) -> io::Result<()> {
    mounts::make_dir_at(dir, name, 0o755)?;
    let made = sys::new_fs(kind, options, attrs)?;
    sys::attach_at(made.as_raw_fd(), dir, name)
}

/// A proc of the box's own pid namespace. It must be made while a fully visible
/// proc of the host is still mounted (kernel: mount_too_revealing).
pub fn proc_fs(root: &mut Root, target: &str, covers: &[String]) -> Result<(), Refusal> {
    let fail = |what: &str, e: &io::Error| Refusal::new("proc_denied", format!("{target}/{what}")).io(e);
    let attrs = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOEXEC;
    let proc = match root.proc.take() {
        Some(proc) => proc,
        None => sys::new_fs("proc", &[], attrs).map_err(|e| fail("", &e))?,
    };
    root.put(&proc, target, true)?;
    for name in covers {
        cover(proc.as_raw_fd(), name).map_err(|e| fail(name, &e))?;
    }
    Ok(())
}

/// Read-only over itself; a name this kernel does not have needs no cover.
fn cover(proc: RawFd, name: &str) -> io::Result<()> {
    let tree = match sys::clone_tree_at(proc, name) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => other?,
    };
    sys::set_attrs(tree.as_raw_fd(), sys::MOUNT_ATTR_RDONLY, false, None)?;
    sys::attach_at(tree.as_raw_fd(), proc, name)
}
