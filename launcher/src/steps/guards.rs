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

/// Tells of a guarded object that the host moves away: its mount goes with it, so
/// the mount table stays as it is and only the inode knows.
///
/// A user has 128 inotify instances (inotify(7), max_user_instances); where they
/// are used up the guards are looked at on a timer instead.
pub struct Moves(Option<OwnedFd>);

impl Moves {
    pub fn new(guards: &[Placed]) -> Moves {
        if guards.is_empty() {
            return Moves(None);
        }
        // SAFETY: no pointers; the descriptor is owned at once.
        let fd = unsafe {
            let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        let moves = Moves(fd);
        let watched = guards.iter().all(|placed| moves.watch(&placed.guard.path));
        if watched {
            moves
        } else {
            Moves(None)
        }
    }

    /// False when the object cannot be watched.
    pub fn watch(&self, path: &str) -> bool {
        let (Some(fd), Ok(path)) = (&self.0, sys::cstr(path)) else { return false };
        let mask = libc::IN_MOVE_SELF | libc::IN_DELETE_SELF | libc::IN_DONT_FOLLOW;
        // SAFETY: path lives through the call.
        unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), mask) >= 0 }
    }

    pub fn fd(&self) -> Option<RawFd> {
        self.0.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// Takes what was told; every guard is looked at anyway.
    pub fn drain(&self) {
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer lives through the calls.
        let more = |fd| unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } > 0;
        if let Some(fd) = self.fd() {
            let mut more = more;
            while more(fd) {}
        }
    }
}

/// A symbolic link is guarded as what it is: its own name, not what it points to.
fn open(root: RawFd, path: &str) -> io::Result<std::os::fd::OwnedFd> {
    let resolve = sys::RESOLVE_IN_ROOT | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
    sys::openat2(root, path, libc::O_PATH | libc::O_NOFOLLOW, resolve)
}
