//! Guards inside a write root: points that cannot be changed or swapped.
//!
//! A guard is a mount of an object on itself. Such a mount hangs on a directory
//! entry of the host and is detached in the box, without a word, when the host
//! renames over that entry (an ordinary `git config` does); so each guard's
//! mount id is kept, and P1 compares after every change of its mount table.
//! Source: mount_namespaces(7), "unlink, rmdir and rename of mount points";
//! statx(2), STATX_MNT_ID.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::plan::Guard;
use crate::report::Refusal;
use crate::sys;

/// A guard that was placed, and the mount that must be found there.
pub struct Placed {
    pub guard: Guard,
    /// Its place in P0's list.
    pub index: u32,
    mount_id: u64,
}

/// Places every guard that exists, parents first. `root` is the new root's descriptor.
pub fn place_all(root: RawFd, guards: &[Guard]) -> Result<Vec<Placed>, Refusal> {
    let mut placed = Vec::with_capacity(guards.len());
    for (index, guard) in guards.iter().enumerate() {
        match place(root, guard) {
            Ok(mount_id) => placed.push(Placed { guard: guard.clone(), index: index as u32, mount_id }),
            // A point that does not exist at start is not promised; it is reported when it appears.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
            Err(e) => return Err(Refusal::new("guard_denied", guard.path.as_str()).io(&e)),
        }
    }
    Ok(placed)
}

/// Binds one guard on itself (or an inert file on a socket) and returns the id of the mount.
pub fn place(root: RawFd, guard: &Guard) -> io::Result<u64> {
    let point = open(root, &guard.path)?;
    let tree = match guard.cover {
        true => inert(root, &point)?,
        false => sys::clone_tree(point.as_raw_fd(), true)?,
    };
    if guard.read_only {
        sys::set_attrs(tree.as_raw_fd(), sys::MOUNT_ATTR_RDONLY, true, None)?;
    }
    sys::attach(tree.as_raw_fd(), point.as_raw_fd())?;
    sys::mount_id(tree.as_raw_fd())
}

/// What covers an object: an empty directory that nobody may list, or a device that `nodev` keeps shut.
fn inert(root: RawFd, point: &OwnedFd) -> io::Result<OwnedFd> {
    if sys::fstat(point.as_raw_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR {
        let shut = sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NOEXEC;
        return sys::new_fs("tmpfs", &[("mode", Some("0")), ("size", Some("4096"))], shut);
    }
    let tree = sys::clone_tree(open(root, "/dev/null")?.as_raw_fd(), false)?;
    sys::set_attrs(tree.as_raw_fd(), sys::MOUNT_ATTR_NODEV, false, None)?;
    Ok(tree)
}

impl Placed {
    /// True while the guard is the mount that is found at its path. By statx
    /// alone: P1's own filter allows it no openat2.
    pub fn holds(&self) -> bool {
        path_mount_id(&self.guard.path).is_ok_and(|id| id == self.mount_id)
    }

    /// True when something stands at the path.
    pub fn exists(&self) -> bool {
        path_mount_id(&self.guard.path).is_ok()
    }

    /// Takes the mount that now hangs on the path as the guard. None does when the host
    /// has renamed once more since P0 placed it: then it is lost again.
    pub fn renew(&mut self) -> io::Result<()> {
        let path = sys::cstr(&self.guard.path)?;
        let root = sys::statx_mount_root(&path)?;
        self.mount_id = root.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(())
    }
}

fn path_mount_id(path: &str) -> io::Result<u64> {
    let path = sys::cstr(path)?;
    sys::statx_mount_id(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW)
}

/// Tells of a guarded object that the host moves away: its mount goes with it, so the mount table
/// stays as it is and only the directory knows. SIGIO comes for every rename and removal in the
/// directories that hold a guard; which one it was is looked up.
///
/// dnotify, because the last close of an inotify waits for a grace period of SRCU, which took 5 to
/// 15 ms of the end of a box (kernel fs/notify/group.c, fsnotify_destroy_group), and because a user
/// has 128 of those. Where it cannot be had (`fs.dir-notify-enable`, a directory that may not be
/// read) the guards are looked at on a timer. Source: F_NOTIFY in fcntl_dirnotify(2).
pub struct Moves(Option<Vec<Watched>>);

/// Source: include/uapi/linux/fcntl.h.
const DN_DELETE: libc::c_ulong = 0x8;
const DN_RENAME: libc::c_ulong = 0x10;
const DN_MULTISHOT: libc::c_ulong = 0x8000_0000;

struct Watched {
    dir: String,
    _held: OwnedFd,
}

impl Moves {
    /// The signals must be blocked: they are read from a signalfd.
    pub fn new(guards: &[Placed]) -> Moves {
        let mut moves = Moves(Some(vec![]));
        for placed in guards {
            let dir = parent(&placed.guard.path);
            if !moves.0.iter().flatten().any(|one| one.dir == dir) {
                moves.watch(&placed.guard.path);
            }
        }
        moves
    }

    /// From here on also in the directory that now holds this name.
    pub fn watch(&mut self, path: &str) {
        let Some(watched) = &mut self.0 else { return };
        let dir = parent(path);
        match renames_in(dir) {
            Ok(held) => {
                // Not before: other guards of a directory that is still the same one would go unwatched.
                watched.retain(|one| one.dir != dir);
                watched.push(Watched { dir: dir.to_owned(), _held: held });
            }
            Err(_) => self.0 = None,
        }
    }

    /// Nobody tells: somebody has to look.
    pub fn untold(&self) -> bool {
        self.0.is_none()
    }
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

fn renames_in(dir: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let path = sys::cstr(dir)?;
    // SAFETY: path lives through the call; the descriptor is owned at once.
    let held = unsafe {
        let fd = libc::open(path.as_ptr(), flags);
        sys::check(i64::from(fd))?;
        OwnedFd::from_raw_fd(fd)
    };
    // Before Linux 5.17 a rename to another directory is a removal alone.
    let events = DN_RENAME | DN_DELETE | DN_MULTISHOT;
    // SAFETY: F_NOTIFY takes no pointer.
    sys::check(i64::from(unsafe { libc::fcntl(held.as_raw_fd(), libc::F_NOTIFY, events) }))?;
    Ok(held)
}

/// A symbolic link is guarded as what it is: its own name, not what it points to.
fn open(root: RawFd, path: &str) -> io::Result<std::os::fd::OwnedFd> {
    let resolve = sys::RESOLVE_IN_ROOT | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
    sys::openat2(root, path, libc::O_PATH | libc::O_NOFOLLOW, resolve)
}
