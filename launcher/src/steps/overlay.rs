//! Overlay rows: a home with hidden names, and a cache with a private upper.
//!
//! Owns the one way of hiding that survives the host: the hidden name is a
//! whiteout in a tmpfs layer above the real directory, so it stays hidden
//! whether it exists, appears later or is replaced, and nothing is written on
//! the host. Where the kernel refuses the overlay: `snapshot.rs`.
//! Source: Documentation/filesystems/overlayfs.rst, "whiteouts and opaque
//! directories", "User xattr".

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::plan::{Kind, Row};
use crate::report::Refusal;
use crate::sockets;
use crate::steps::mounts::{self, Root};
use crate::steps::snapshot::{self, Names};
use crate::sys;

const FLAGS: u64 = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV;

/// A read-only view of a directory without the names in `hide`.
pub fn home(root: &mut Root, row: &Row) -> Result<(), Refusal> {
    match veiled(root, row) {
        // What the kernel says to a lower layer with a mount below it, and where overlayfs is missing.
        Err(e) if refused(e.errno) => {
            listed(root, row)?;
            root.snapshot = true;
            Ok(())
        }
        other => other,
    }
}

/// An empty overlay over a directory that holds a socket: see `cover.rs`.
pub fn cover(root: &Root, dir: &str) -> Result<(), Refusal> {
    let fail = |e: &io::Error| Refusal::new("overlay_denied", dir).io(e);
    let Some(here) = reachable(root, dir)? else { return Ok(()) };
    let lower = match root.prepared {
        Some(_) => sys::clone_tree(here.as_raw_fd(), false),
        None => here.try_clone(),
    };
    let put = match lower.and_then(|lower| put_overlay(root, lower, dir, &[], &[])) {
        Err(e) if refused(e.raw_os_error()) => put_list(root, &here, dir, Names::default()),
        other => other,
    };
    put.or_else(|e| still_reachable(root, dir, fail(&e)))
}

/// An inert file over a socket whose directory must stay as it is.
pub fn cover_file(root: &Root, file: &str) -> Result<(), Refusal> {
    let fail = |e: &io::Error| Refusal::new("mount_denied", format!("cover of {file}")).io(e);
    let Some(here) = reachable(root, file)? else { return Ok(()) };
    let inert = sys::open_host("/dev/null").and_then(|null| sys::clone_tree(null.as_raw_fd(), false));
    inert
        .and_then(|inert| sys::attach(inert.as_raw_fd(), here.as_raw_fd()))
        .or_else(|e| still_reachable(root, file, fail(&e)))
}

/// What the host has removed meanwhile needs no cover (mount(2), ENOENT for an unlinked place).
fn still_reachable(root: &Root, path: &str, failed: Refusal) -> Result<(), Refusal> {
    reachable(root, path)?.map_or(Ok(()), |_| Err(failed))
}

/// What P1 itself cannot reach in the new root, the command cannot either.
fn reachable(root: &Root, path: &str) -> Result<Option<OwnedFd>, Refusal> {
    match root.open(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(e) => Err(Refusal::new("overlay_denied", path).io(&e)),
    }
}

fn refused(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EINVAL | libc::EPERM | libc::ENODEV | libc::EOPNOTSUPP))
}

fn veiled(root: &mut Root, row: &Row) -> Result<(), Refusal> {
    let Row::Overlay { source, target, hide, dirs, create, .. } = row else { return Ok(()) };
    let lower = match root.prepared {
        // A detached, idmapped tree.
        Some(_) => root.source_tree(source, Kind::Dir, false)?,
        None => mounts::open_source(source, Kind::Dir)?,
    };
    root.mount_point(target, create.then_some(true))?;
    put_overlay(root, lower, target, hide, dirs).map_err(|e| Refusal::new("overlay_denied", target.as_str()).io(&e))
}

/// Layers are named through /proc/self/fd and must be mounts of this namespace. A
/// tree that was made elsewhere is parked on the target, below the overlay; so is
/// the veil (a detached mount would cost a grace period of RCU when it is closed).
fn put_overlay(root: &Root, lower: OwnedFd, target: &str, hide: &[String], dirs: &[String]) -> io::Result<()> {
    if root.prepared.is_some() {
        stack(root, &lower, target)?;
    }
    let veil = veil(lower.as_raw_fd(), hide, dirs)?;
    stack(root, &veil, target)?;
    let layers = format!("/proc/self/fd/{}:/proc/self/fd/{}", veil.as_raw_fd(), lower.as_raw_fd());
    let options = [("lowerdir", Some(layers.as_str())), ("userxattr", None)];
    stack(root, &sys::new_fs("overlay", &options, FLAGS | sys::MOUNT_ATTR_RDONLY)?, target)
}

fn stack(root: &Root, mount: &OwnedFd, target: &str) -> io::Result<()> {
    sys::attach(mount.as_raw_fd(), root.open(target)?.as_raw_fd())
}

/// The fallback: what is there now, entry by entry, without the sockets.
fn listed(root: &mut Root, row: &Row) -> Result<(), Refusal> {
    let Row::Overlay { source, target, hide, dirs, create, .. } = row else { return Ok(()) };
    let from = mounts::open_source(source, Kind::Dir)?;
    root.mount_point(target, create.then_some(true))?;
    let names =
        Names { hide: hide.iter().cloned().collect(), dirs: dirs.iter().cloned().collect(), mounts_apart: true };
    put_list(root, &from, target, names).map_err(|e| Refusal::new("overlay_denied", target.as_str()).io(&e))
}

fn put_list(root: &Root, from: &OwnedFd, target: &str, mut names: Names) -> io::Result<()> {
    let mode = format!("{:o}", sys::fstat(from.as_raw_fd())?.st_mode & 0o777);
    let into = sys::new_fs("tmpfs", &[("mode", Some(&mode)), ("size", Some("4194304"))], FLAGS)?;
    stack(root, &into, target)?;
    let sockets = sockets::read_host(false)?;
    names.hide.extend(sockets.iter().filter_map(|path| path.strip_prefix(target).ok()?.to_str().map(str::to_string)));
    snapshot::fill(from.as_raw_fd(), into.as_raw_fd(), &names)?;
    sys::set_attrs(into.as_raw_fd(), sys::MOUNT_ATTR_RDONLY, false, None)
}

/// A writable cache: the user's own below, read-only; the identity's upper above.
pub fn cache(root: &mut Root, row: &Row) -> Result<(), Refusal> {
    let Row::Cache { source, upper, work, target, create, .. } = row else { return Ok(()) };
    let fail = |e: &io::Error| Refusal::new("overlay_denied", target.as_str()).io(e);
    let ((base, upper_name), (work_base, work_name)) = (mounts::split(upper), mounts::split(work));
    if base != work_base {
        return Err(Refusal::new("plan_invalid", upper.as_str()).detail("upper and work must have one parent"));
    }
    let store = root.source_tree(base, Kind::Dir, false)?;
    root.put(&store, target, *create)?;
    let store = format!("/proc/self/fd/{}", store.as_raw_fd());
    let lower = match source {
        Some(path) => root.source_tree(path, Kind::Dir, false)?,
        None => sys::new_fs("tmpfs", &[("size", Some("4096"))], FLAGS).map_err(|e| fail(&e))?,
    };
    root.put(&lower, target, false)?;
    let lower = format!("/proc/self/fd/{}", lower.as_raw_fd());
    let (upper, work) = (format!("{store}/{upper_name}"), format!("{store}/{work_name}"));
    let options = [
        ("lowerdir", Some(lower.as_str())),
        ("upperdir", Some(upper.as_str())),
        ("workdir", Some(work.as_str())),
        ("userxattr", None),
    ];
    let made = sys::new_fs("overlay", &options, FLAGS).map_err(|e| fail(&e))?;
    root.put(&made, target, false)
}

/// The layer that hides: a tmpfs with a whiteout per hidden name and a
/// directory per mount point that the host may not have.
fn veil(lower: RawFd, hide: &[String], dirs: &[String]) -> io::Result<OwnedFd> {
    let top = sys::fstat(lower)?;
    let mode = format!("{:o}", top.st_mode & 0o777);
    let veil = sys::new_fs("tmpfs", &[("mode", Some(&mode)), ("size", Some("4194304"))], FLAGS)?;
    let mut trail = Trail { veil, lower, open: Vec::new(), first: None };
    for name in dirs {
        trail.lay(name, true)?;
    }
    for name in hide {
        trail.lay(name, false)?;
    }
    Ok(trail.veil)
}

/// The veil in the making. Names come sorted: directories that lead to one mostly lead to the next.
struct Trail {
    veil: OwnedFd,
    lower: RawFd,
    /// The directories that lead to the last name, each with its path.
    open: Vec<(String, OwnedFd)>,
    /// The first whiteout: the others are links to it, which cost no inode each (overlayfs does the same).
    first: Option<(OwnedFd, String)>,
}

impl Trail {
    /// Walks `name` in the veil, copying directory modes from the host, and ends in
    /// a directory (mount point) or a whiteout. A parent that the host does not have
    /// is itself whited out: it must not appear, and may not be filled in later.
    fn lay(&mut self, name: &str, mount_point: bool) -> io::Result<()> {
        let leads = |path: &str| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        while self.open.last().is_some_and(|(path, _)| !leads(path)) {
            self.open.pop();
        }
        let mut start = self.open.last().map_or(0, |(path, _)| path.len() + 1);
        while start <= name.len() {
            let end = name[start..].find('/').map_or(name.len(), |at| start + at);
            let needed = end < name.len() || mount_point;
            if !(needed && self.enter(&name[..end], &name[start..end], mount_point)?) {
                // An existing directory here is a mount point of the plan: grants win over hiding its parents.
                return ignore_existing(self.white_out(&name[start..end]));
            }
            start = end + 1;
        }
        Ok(())
    }

    /// Makes and opens one directory; false when the host has none and none is needed.
    fn enter(&mut self, path: &str, part: &str, mount_point: bool) -> io::Result<bool> {
        if let Some(mode) = host_dir_mode(self.lower, path).or(mount_point.then_some(0o755)) {
            ignore_existing(mounts::make_dir_at(self.here(), part, mode))?;
        }
        let Ok(next) = open_dir(self.here(), part) else { return Ok(false) };
        self.open.push((path.to_string(), next));
        Ok(true)
    }

    fn white_out(&mut self, part: &str) -> io::Result<()> {
        if let Some((dir, name)) = &self.first {
            return mounts::link_at(dir.as_raw_fd(), name, self.here(), part);
        }
        mounts::make_node_at(self.here(), part, libc::S_IFCHR)?;
        self.first = Some((dup(self.here())?, part.to_string()));
        Ok(())
    }

    fn here(&self) -> RawFd {
        self.open.last().map_or(self.veil.as_raw_fd(), |(_, dir)| dir.as_raw_fd())
    }
}

fn host_dir_mode(lower: RawFd, path: &str) -> Option<libc::mode_t> {
    let resolve = sys::RESOLVE_IN_ROOT | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
    let fd = sys::openat2(lower, path, libc::O_PATH | libc::O_NOFOLLOW, resolve).ok()?;
    let st = sys::fstat(fd.as_raw_fd()).ok()?;
    (st.st_mode & libc::S_IFMT == libc::S_IFDIR).then_some(st.st_mode & 0o777)
}

fn open_dir(at: RawFd, name: &str) -> io::Result<OwnedFd> {
    sys::openat2(at, name, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

fn dup(fd: RawFd) -> io::Result<OwnedFd> {
    sys::openat2(fd, ".", libc::O_PATH | libc::O_DIRECTORY, 0)
}

fn ignore_existing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}
