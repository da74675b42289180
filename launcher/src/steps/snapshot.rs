//! A home without overlay: one bind per entry that was there at start.
//!
//! Owns the fallback where the kernel refuses an overlay over the home (a file
//! system mounted somewhere below it, a file system that overlayfs does not
//! take). Nothing that appears later is visible, hidden names least of all; the
//! receipt says `home: snapshot`. Costs one mount per entry of the home.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use crate::steps::mounts;
use crate::sys;

const FLAGS: u64 = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_RDONLY;

/// What is left out, and which directories must exist as mount points.
#[derive(Default)]
pub struct Names {
    pub hide: BTreeSet<String>,
    pub dirs: BTreeSet<String>,
    /// Mounts below have rows of their own, or are not shown: their file systems may never answer.
    pub mounts_apart: bool,
}

impl Names {
    /// True when something below `path` is hidden or needed, so that it cannot be bound whole.
    fn inside(&self, path: &str) -> bool {
        let below = |set: &BTreeSet<String>| {
            let from = format!("{path}/");
            set.range(from.clone()..).next().is_some_and(|name| name.starts_with(&from))
        };
        below(&self.hide) || below(&self.dirs)
    }
}

/// Fills `into` (an empty tmpfs) with the entries of `from`.
pub fn fill(from: RawFd, into: RawFd, names: &Names) -> io::Result<()> {
    level(from, into, "", names)?;
    names.dirs.iter().try_for_each(|dir| make_dirs(into, dir))
}

fn level(from: RawFd, into: RawFd, prefix: &str, names: &Names) -> io::Result<()> {
    for (name, is_dir) in list(from)? {
        // A name that is no text cannot be matched against the hidden ones: left out.
        let Ok(name) = name.into_string() else { continue };
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if !names.hide.contains(&path) {
            entry(from, into, (&name, is_dir), &path, names)?;
        }
    }
    Ok(())
}

fn entry(from: RawFd, into: RawFd, (name, is_dir): (&str, bool), path: &str, names: &Names) -> io::Result<()> {
    let resolve = sys::RESOLVE_NO_MAGICLINKS | if names.mounts_apart { sys::RESOLVE_NO_XDEV } else { 0 };
    let source = match sys::openat2(from, name, libc::O_PATH | libc::O_NOFOLLOW, resolve) {
        // Gone since it was listed.
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::EXDEV) => return mounts::make_at(into, name, is_dir),
        other => other?,
    };
    let mode = sys::fstat(source.as_raw_fd())?.st_mode;
    match mode & libc::S_IFMT {
        libc::S_IFDIR if names.inside(path) => {
            mounts::make_dir_at(into, name, mode & 0o777)?;
            level(open_dir(from, name)?.as_raw_fd(), open_dir(into, name)?.as_raw_fd(), path, names)
        }
        libc::S_IFDIR => {
            mounts::make_dir_at(into, name, 0o700)?;
            bind(&source, into, name)
        }
        libc::S_IFREG => {
            mounts::make_node_at(into, name, libc::S_IFREG | 0o600)?;
            bind(&source, into, name)
        }
        libc::S_IFLNK => copy_link(from, into, name),
        // Sockets, pipes and devices of the host are what a box must not reach.
        _ => Ok(()),
    }
}

fn bind(source: &OwnedFd, into: RawFd, name: &str) -> io::Result<()> {
    let tree = sys::clone_tree(source.as_raw_fd(), true)?;
    sys::set_attrs(tree.as_raw_fd(), FLAGS, true, None)?;
    let point = sys::openat2(into, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    sys::attach(tree.as_raw_fd(), point.as_raw_fd())
}

fn copy_link(from: RawFd, into: RawFd, name: &str) -> io::Result<()> {
    let name = sys::cstr(name)?;
    let target = std::ffi::CString::new(sys::link_target(from, &name)?);
    let target = target.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: both strings live through the call.
    unsafe { sys::check(i64::from(libc::symlinkat(target.as_ptr(), into, name.as_ptr()))).map(drop) }
}

fn make_dirs(into: RawFd, path: &str) -> io::Result<()> {
    let mut here = open_dir(into, ".")?;
    for part in path.split('/') {
        match mounts::make_dir_at(here.as_raw_fd(), part, 0o755) {
            Err(e) if e.raw_os_error() != Some(libc::EEXIST) => return Err(e),
            _ => here = open_dir(here.as_raw_fd(), part)?,
        }
    }
    Ok(())
}

fn open_dir(at: RawFd, name: &str) -> io::Result<OwnedFd> {
    sys::openat2(at, name, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

/// Names, and which of them are directories: as the directory has it, below what is mounted there.
fn list(dir: RawFd) -> io::Result<Vec<(OsString, bool)>> {
    let entries = std::fs::read_dir(format!("/proc/self/fd/{dir}"))?;
    let named = |entry: std::fs::DirEntry| {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (OsString::from_vec(entry.file_name().into_vec()), is_dir)
    };
    entries.map(|entry| entry.map(named)).collect()
}
