//! Opening files where a filter around us knows no openat2.
//!
//! Owns what takes its place in a box without namespaces, whose own filter answers ENOSYS, and in old
//! containers: the parts of a path one by one, none of them a link. Fails closed: what openat2 would refuse is
//! refused here, by the same numbers. Source: openat2(2); openat(2), O_PATH and O_NOFOLLOW. Next: sys.rs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{
    cstr, fstat, mount_id, openat, openat2, openat2_c, owned, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
};

fn unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSYS)
}

/// O_PATH of a path as it is, also where a filter around us (that of a box, say) knows no openat2.
pub fn open_path(path: &str, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    match openat2(libc::AT_FDCWD, path, libc::O_PATH | flags, resolve) {
        Err(e) if unknown(&e) => place_at(libc::AT_FDCWD, &cstr(path)?, flags),
        other => other,
    }
}

/// O_PATH of a canonical path, in which no part may be a symbolic link: then by its parts.
pub fn open_unlinked(path: &str) -> io::Result<OwnedFd> {
    match openat2(libc::AT_FDCWD, path, libc::O_PATH, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS) {
        Err(e) if unknown(&e) => open_by_parts(path),
        other => other,
    }
}

fn open_by_parts(path: &str) -> io::Result<OwnedFd> {
    let mut place = place_at(libc::AT_FDCWD, c"/", libc::O_DIRECTORY)?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        // With O_PATH and O_NOFOLLOW a link is opened itself; nothing is found below it (ENOTDIR).
        place = place_at(place.as_raw_fd(), &cstr(part)?, libc::O_NOFOLLOW)?;
    }
    match fstat(place.as_raw_fd())?.st_mode & libc::S_IFMT {
        libc::S_IFLNK => Err(io::Error::from_raw_os_error(libc::ELOOP)),
        _ => Ok(place),
    }
}

fn place_at(dir: RawFd, path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: path outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_openat, dir, path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC | flags, 0) })
}

/// A canonical path with these flags; a link in any part is ELOOP.
pub fn open_canonical(path: &str, flags: i32) -> io::Result<OwnedFd> {
    match openat2(libc::AT_FDCWD, path, flags, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS) {
        Err(e) if unknown(&e) => canonical_by_parts(path, flags),
        other => other,
    }
}

fn canonical_by_parts(path: &str, flags: i32) -> io::Result<OwnedFd> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    // An O_PATH descriptor cannot be read, and nothing opens it again but a name.
    openat(open_by_parts(above)?.as_raw_fd(), &cstr(if name.is_empty() { "." } else { name })?, flags, 0)
}

/// A name of a directory, on the same mount: another is EXDEV.
pub fn open_on_mount(dir: RawFd, name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    match openat2_c(dir, name, flags | libc::O_NOFOLLOW, RESOLVE_NO_XDEV) {
        Err(e) if unknown(&e) => on_mount_by_parts(dir, name, flags),
        other => other,
    }
}

fn on_mount_by_parts(dir: RawFd, name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // Told before it is opened: who answers for another mount may not.
    let place = place_at(dir, name, libc::O_NOFOLLOW)?;
    if mount_id(place.as_raw_fd())? != mount_id(dir)? {
        return Err(io::Error::from_raw_os_error(libc::EXDEV));
    }
    openat(dir, name, flags, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::open_dir;

    /// The kind of object that was opened, or the number of the error.
    fn outcome(opened: io::Result<OwnedFd>) -> Result<u32, Option<i32>> {
        let fd = opened.map_err(|e| e.raw_os_error())?;
        Ok(fstat(fd.as_raw_fd()).expect("of an open file").st_mode & libc::S_IFMT)
    }

    #[test]
    fn by_parts_a_path_is_what_openat2_says() {
        let base = std::env::temp_dir().join(format!("stockade-byparts-{}", std::process::id()));
        std::fs::create_dir_all(base.join("dir/inner")).expect("temp dir");
        std::fs::write(base.join("dir/file"), "x").expect("file");
        std::os::unix::fs::symlink("dir", base.join("link")).expect("link");
        std::os::unix::fs::symlink("file", base.join("dir/to")).expect("link");
        let base = base.canonicalize().expect("canonical");
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        for name in ["", "/dir", "/dir/file", "/dir/inner", "/dir/to", "/link", "/link/file", "/none", "/dir/file/x"] {
            let path = format!("{}{name}", base.to_str().expect("text"));
            for flags in [flags, flags | libc::O_DIRECTORY] {
                let asked = openat2(libc::AT_FDCWD, &path, flags, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
                let (told, got) = (outcome(asked), outcome(canonical_by_parts(&path, flags)));
                // A link where a directory is wanted is one of two errors.
                let link = |found: &Result<u32, Option<i32>>| matches!(found, Err(Some(libc::ELOOP | libc::ENOTDIR)));
                assert!(told == got || (link(&told) && link(&got)), "{path}: {told:?} and {got:?}");
            }
        }
        std::fs::remove_dir_all(&base).expect("ours");
    }

    #[test]
    fn by_parts_another_mount_is_told_from_a_directory() {
        let root = open_dir(libc::AT_FDCWD, c"/").expect("root");
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        for name in [c"proc", c"usr", c"none-of-that-name"] {
            let asked = openat2_c(root.as_raw_fd(), name, flags, RESOLVE_NO_XDEV);
            assert_eq!(outcome(asked), outcome(on_mount_by_parts(root.as_raw_fd(), name, flags)), "{name:?}");
        }
    }
}
