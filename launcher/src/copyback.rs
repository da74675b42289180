//! Files of the home that their tool saves by rename, and which are kept.
//!
//! Owns the way there and back. The host's file is opened before the box exists
//! and its content copied into the private home; when the last process is dead,
//! what the command left under that name replaces the host's file, in one
//! rename, if that is still the file of the start. Otherwise the box's version
//! is kept aside in the state home: neither is lost. The command chose the
//! content, so it is read as a regular file, no-follow, up to a size. Next:
//! discard.rs (what else is in the private home).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::discard::{Place, RESOLVE};
use crate::persist::walk::Entry;
use crate::plan::Plan;
use crate::report::{show, Refusal};
use crate::steps::mounts::{self, split, Root};
use crate::sys::{make_dir, open_dir};
use crate::{sys, ulid};

const MAX_BYTES: u64 = 16 << 20;

/// One file as the plan names it: where it is on the host, and in the box.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copyback {
    pub source: String,
    pub target: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Copied {
    pub path: String,
    pub result: Outcome,
    /// Where the box's version is, when it could not be written back.
    pub kept: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Unchanged,
    Written,
    /// The host's file is no longer that of the start.
    Conflict,
    /// The command removed it; the host's stays.
    Removed,
    NotAFile,
    TooLarge,
    Failed,
}

/// The host's file at the start, by the descriptor of its directory.
pub struct Held {
    /// None: the host has no such directory, and gets none.
    dir: Option<OwnedFd>,
    name: CString,
    before: Option<(OwnedFd, Entry)>,
}

/// In P0, before the box exists: a root caller's P1 could not open them.
pub fn hold(plan: &Plan) -> Result<Vec<Held>, Refusal> {
    plan.copyback.iter().map(|one| Held::open(&one.source)).collect()
}

impl Held {
    fn open(source: &str) -> Result<Held, Refusal> {
        let fail = |e: &io::Error| Refusal::new("source_denied", source).io(e);
        let (parent, name) = split(source);
        let name = sys::cstr(name).map_err(|e| fail(&e))?;
        let dir = match sys::open_host(parent) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Held { dir: None, name, before: None }),
            other => other.map_err(|e| fail(&e))?,
        };
        let file = match sys::openat(dir.as_raw_fd(), &name, libc::O_RDONLY, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Held { dir: Some(dir), name, before: None }),
            other => other.map_err(|e| fail(&e))?,
        };
        let entry = Entry::of(file.as_raw_fd(), c"").map_err(|e| fail(&e))?;
        if !entry.is_plain() || entry.size() > MAX_BYTES {
            return Err(Refusal::new("source_type", source).detail("expected a regular file of at most 16 MiB"));
        }
        Ok(Held { dir: Some(dir), name, before: Some((file, entry)) })
    }

    /// True while the host has the very file of the start, untouched, or still none.
    fn is_same(&self) -> bool {
        let Some(dir) = &self.dir else { return true };
        let now = Entry::of(dir.as_raw_fd(), &self.name);
        match (&self.before, now) {
            (Some((_, before)), Ok(now)) => now == *before,
            (None, Err(e)) => e.raw_os_error() == Some(libc::ENOENT),
            _ => false,
        }
    }

    /// A new file beside the old one, then one rename; a name that was free is never replaced.
    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let temporary = CString::new(format!(".stockade-{}", ulid::ulid()?))?;
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        // The O_PATH descriptor of the start, opened for use.
        let dir = open_dir(self.dir.as_ref().ok_or_else(missing)?.as_raw_fd(), c".")?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let mut file = File::from(sys::openat(dir.as_raw_fd(), &temporary, flags, 0o600)?);
        let done = file
            .write_all(content)
            .and_then(|()| self.dress(&file, dir.as_raw_fd()))
            .and_then(|()| sys::fsync(file.as_raw_fd()))
            .and_then(|()| self.is_same().then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE)))
            .and_then(|()| {
                sys::rename(dir.as_raw_fd(), &temporary, dir.as_raw_fd(), &self.name, self.before.is_none())
            });
        if done.is_err() {
            let _ = sys::unlink(dir.as_raw_fd(), &temporary);
        }
        done
    }

    /// Mode and, for a root caller, owner of the file that is replaced; a new one belongs to its directory's owner.
    fn dress(&self, file: &File, dir: RawFd) -> io::Result<()> {
        let like = self.before.as_ref().map_or(dir, |(file, _)| file.as_raw_fd());
        let st = sys::fstat(like)?;
        let fd = file.as_raw_fd();
        if self.before.is_some() {
            // SAFETY: no pointers. Without the bits that give a program power.
            sys::check(unsafe { libc::syscall(libc::SYS_fchmod, fd, st.st_mode & 0o777) })?;
        }
        // SAFETY: no pointers.
        if unsafe { libc::geteuid() } == 0 {
            // SAFETY: as above.
            sys::check(unsafe { libc::syscall(libc::SYS_fchown, fd, st.st_uid, st.st_gid) })?;
        }
        Ok(())
    }
}

/// In P1, into the new root. The descriptors go: hostile code will run beside this process.
pub fn place(root: &Root, plan: &Plan, held: &[Held]) -> Result<(), Refusal> {
    for (held, asked) in held.iter().zip(&plan.copyback) {
        let fail = |e: io::Error| Refusal::new("mount_denied", format!("copy of {}", asked.target)).io(&e);
        // Also where there is no file yet: the command finds the directory that it has on the host.
        let (dir, name) = root.parent_of(&asked.target)?;
        if let Some((file, entry)) = &held.before {
            let mut content = vec![];
            let copy = file.try_clone().map_err(fail)?;
            File::from(copy).take(MAX_BYTES).read_to_end(&mut content).map_err(fail)?;
            mounts::write_at(dir, name, 0o600, &content).map_err(fail)?;
            stamp(dir, &sys::cstr(name).map_err(fail)?, entry).map_err(fail)?;
            // SAFETY: P0 has its own; nothing in this process uses it again.
            unsafe { libc::close(file.as_raw_fd()) };
        }
        if let Some(dir) = &held.dir {
            // SAFETY: as above.
            unsafe { libc::close(dir.as_raw_fd()) };
        }
    }
    Ok(())
}

/// The copy keeps the time of the original: it tells whether the command wrote it.
fn stamp(dir: RawFd, name: &CStr, entry: &Entry) -> io::Result<()> {
    let (seconds, nanos) = entry.mtime();
    let time = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
    // SAFETY: name and times live through the call.
    let ret = unsafe { libc::utimensat(dir, name.as_ptr(), [time, time].as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    sys::check(i64::from(ret)).map(drop)
}

/// In P0, when every process is dead.
pub fn finish(held: &[Held], places: &[Place], plan: &Plan, aside: &Aside) -> Vec<Copied> {
    let one = |(number, (held, asked)): (usize, (&Held, &Copyback))| {
        let path = show(asked.source.as_bytes());
        let (result, kept) = match left(places, plan, &asked.target) {
            Err(result) => (result, None),
            Ok((_, entry)) if held.before.as_ref().is_some_and(|(_, was)| untouched(was, &entry)) => {
                (Outcome::Unchanged, None)
            }
            Ok((content, _)) => back(held, &content, aside, number),
        };
        // Nothing at the start and nothing at the end.
        let result = if result == Outcome::Removed && held.before.is_none() { Outcome::Unchanged } else { result };
        Copied { path, result, kept }
    };
    held.iter().zip(&plan.copyback).enumerate().map(one).collect()
}

fn untouched(was: &Entry, now: &Entry) -> bool {
    was.size() == now.size() && was.mtime() == now.mtime()
}

/// What the command left under the name, as it is there now.
fn left(places: &[Place], plan: &Plan, target: &str) -> Result<(Vec<u8>, Entry), Outcome> {
    let inside = |place: &String| target.strip_prefix(place.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let found = plan.discards.iter().zip(places).filter_map(|(place, held)| Some((inside(place)?, held)));
    let (name, place) = found.min_by_key(|(rest, _)| rest.len()).ok_or(Outcome::Failed)?;
    let (place, name) = (place.fd.as_raw_fd(), sys::cstr(name).map_err(|_| Outcome::Failed)?);
    let open = || sys::openat2_c(place, &name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, RESOLVE);
    let entry = match Entry::of(place, &name) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Err(Outcome::Removed),
        other => other.map_err(|_| Outcome::Failed)?,
    };
    if !entry.is_plain() || entry.is_link() {
        return Err(Outcome::NotAFile);
    }
    let file = open().or_else(|_| {
        // Shut by the command, whose own file it is.
        // SAFETY: name lives through the call; nobody is left to swap it.
        sys::check(unsafe { libc::syscall(libc::SYS_fchmodat, place, name.as_ptr(), 0o600) })?;
        open()
    });
    let mut content = vec![];
    let file = File::from(file.map_err(|_| Outcome::NotAFile)?);
    file.take(MAX_BYTES + 1).read_to_end(&mut content).map_err(|_| Outcome::Failed)?;
    match content.len() as u64 > MAX_BYTES {
        true => Err(Outcome::TooLarge),
        false => Ok((content, entry)),
    }
}

fn back(held: &Held, content: &[u8], aside: &Aside, number: usize) -> (Outcome, Option<String>) {
    let result = match held.is_same() {
        false => Outcome::Conflict,
        true => match held.replace(content) {
            Ok(()) => return (Outcome::Written, None),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ESTALE | libc::EEXIST)) => Outcome::Conflict,
            Err(_) => Outcome::Failed,
        },
    };
    (result, aside.keep(content, number).ok())
}

/// `copyback/RUN` of the state home.
pub struct Aside<'a> {
    pub state_home: &'a str,
    pub run_id: &'a str,
}

impl Aside<'_> {
    fn keep(&self, content: &[u8], number: usize) -> io::Result<String> {
        let mut here = open_dir(libc::AT_FDCWD, &sys::cstr(self.state_home)?)?;
        for name in ["copyback", self.run_id] {
            let name = sys::cstr(name)?;
            make_dir(here.as_raw_fd(), &name)?;
            here = open_dir(here.as_raw_fd(), &name)?;
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let name = sys::cstr(&number.to_string())?;
        let mut file = File::from(sys::openat(here.as_raw_fd(), &name, flags, 0o600)?);
        file.write_all(content)?;
        sys::fsync(file.as_raw_fd())?;
        Ok(format!("{}/copyback/{}/{number}", self.state_home, self.run_id))
    }
}
