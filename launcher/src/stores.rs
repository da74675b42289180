//! The caches of an identity: there, ours, and marked as in use while the box lives.
//!
//! Owns the shared lock on its directory. P0 takes it before anything is mounted and
//! P1 inherits it, so it ends with the last process of the box, whichever of them
//! is killed. Who removes one renames it away under the exclusive lock; hence the
//! second look at the name, and what was cleared is simply made again:
//! a launch line works any number of times. Costs nothing where no cache is.
//! Read next: `steps/overlay.rs`, src/stockade/process/stores.py.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::plan::{Kind, Plan, Row};
use crate::report::Refusal;
use crate::steps::mounts::{make_dir_at, open_source, split};
use crate::sys;

/// The other side holds its lock for one rename.
const TRIES: u32 = 200;

/// Returns the locks; they last as long as the descriptors of P0 and P1.
pub fn hold(plan: &Plan) -> Result<Vec<OwnedFd>, Refusal> {
    let mut held: Vec<(&str, OwnedFd)> = vec![];
    for row in &plan.mounts {
        let Row::Cache { upper, work, .. } = row else { continue };
        let ((store, upper), (_, work)) = (split(upper), split(work));
        let (identity, name) = split(store);
        if held.last().is_none_or(|(last, _)| *last != identity) {
            held.push((identity, hold_one(identity)?));
        }
        for path in [name.to_string(), format!("{name}/{upper}"), format!("{name}/{work}")] {
            let dir = held.last().map_or(libc::AT_FDCWD, |(_, lock)| lock.as_raw_fd());
            made(make_dir_at(dir, &path, 0o700)).map_err(|e| Refusal::new("source_denied", store).io(&e))?;
        }
    }
    Ok(held.into_iter().map(|(_, lock)| lock).collect())
}

fn hold_one(identity: &str) -> Result<OwnedFd, Refusal> {
    let fail = |e: &io::Error| Refusal::new("source_denied", identity).io(e);
    for _ in 0..TRIES {
        let opened = open_or_make(identity)?;
        // A path descriptor cannot be locked.
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let lock = sys::openat2(opened.as_raw_fd(), ".", flags, 0).map_err(|e| fail(&e))?;
        if sys::try_lock(lock.as_raw_fd(), libc::LOCK_SH).map_err(|e| fail(&e))?
            && is_still(identity, &lock).map_err(|e| fail(&e))?
        {
            // When it was last used: what goes first is what has the oldest time.
            // SAFETY: the descriptor is ours; null means now.
            unsafe { libc::futimens(lock.as_raw_fd(), std::ptr::null()) };
            return Ok(lock);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Refusal::new("resource", identity).detail("got a cache that is being removed, expected one to use"))
}

fn open_or_make(identity: &str) -> Result<OwnedFd, Refusal> {
    match open_source(identity, Kind::Dir) {
        Err(e) if e.is("source_missing") => {
            let (all, id) = split(identity);
            let parent = open_source(all, Kind::Dir)?;
            made(make_dir_at(parent.as_raw_fd(), id, 0o700))
                .map_err(|e| Refusal::new("source_denied", identity).io(&e))?;
            open_source(identity, Kind::Dir)
        }
        other => other,
    }
}

fn made(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

/// The name may have been renamed away between the open and the lock.
fn is_still(identity: &str, fd: &OwnedFd) -> io::Result<bool> {
    let there = match sys::open_host(identity) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        other => sys::fstat(other?.as_raw_fd())?,
    };
    let ours = sys::fstat(fd.as_raw_fd())?;
    Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino))
}
