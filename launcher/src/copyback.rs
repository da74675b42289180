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

use crate::discard::{reach, Place, RESOLVE};
use crate::persist::walk::Entry;
use crate::plan::Plan;
use crate::report::{show, Refusal};
use crate::steps::mounts::{self, split, Root};
use crate::sys::open_dir;
use crate::{sys, ulid};

const MAX_BYTES: u64 = 16 << 20;
/// Each further one is a save of the host within microseconds.
const SWAPS_MAX: u32 = 100;

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
        let dir = dir.as_raw_fd();
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let mut file = File::from(sys::openat(dir, &temporary, flags, 0o600)?);
        let ready = file
            .write_all(content)
            .and_then(|()| self.dress(&file, dir))
            .and_then(|()| sys::fsync(file.as_raw_fd()))
            .and_then(|()| self.is_same().then_some(()).ok_or_else(stale))
            .and_then(|()| Entry::of(file.as_raw_fd(), c""));
        let done = match (ready, &self.before) {
            (Ok(new), Some((_, before))) => return self.swap(dir, &temporary, new, *before),
            (ready, _) => ready.and_then(|_| sys::rename_to_free(dir, &temporary, dir, &self.name)),
        };
        if done.is_err() {
            let _ = sys::unlink(dir, &temporary);
        }
        done
    }

    /// The host may save between the look at its file and the rename, so what came out is looked at, too.
    /// A version that was not expected is newer than what took its place and goes back, as often as that happens.
    fn swap(&self, dir: RawFd, temporary: &CStr, new: Entry, before: Entry) -> io::Result<()> {
        let (mut put, mut expected) = (new, before);
        for round in 0..SWAPS_MAX {
            if let Err(e) = sys::exchange(dir, temporary, &self.name) {
                // ENOENT: the host removed it. Its newer version stays, under the other name if it must.
                let _ = match round {
                    0 => sys::unlink(dir, temporary),
                    _ => sys::rename_to_free(dir, temporary, dir, &self.name),
                };
                return Err(if e.raw_os_error() == Some(libc::ENOENT) { stale() } else { e });
            }
            let out = Entry::of(dir, temporary)?;
            // The rename itself has changed this one.
            expected.ctime_ns = out.ctime_ns;
            if !out.differs(&expected) {
                let _ = sys::unlink(dir, temporary);
                return if round == 0 { Ok(()) } else { Err(stale()) };
            }
            (expected, put) = (put, out);
        }
        sys::rename(dir, temporary, dir, &self.name).and(Err(stale()))
    }

    /// Group and mode of the file that is replaced, for a root caller the owner, too; a new one belongs to
    /// its directory's owner.
    fn dress(&self, file: &File, dir: RawFd) -> io::Result<()> {
        let like = self.before.as_ref().map_or(dir, |(file, _)| file.as_raw_fd());
        let (fd, like) = (file.as_raw_fd(), sys::fstat(like)?);
        // SAFETY: no pointers.
        let root = unsafe { libc::geteuid() } == 0;
        if root {
            chown(fd, like.st_uid, like.st_gid)?;
        }
        if self.before.is_some() {
            // Another's file that was replaced by name is the caller's now: its owner is not kept.
            let same_group = root || chown(fd, libc::uid_t::MAX, like.st_gid).is_ok();
            // SAFETY: no pointers.
            sys::check(unsafe { libc::syscall(libc::SYS_fchmod, fd, mode(like.st_mode, same_group)) })?;
        }
        Ok(())
    }
}

fn chown(fd: RawFd, uid: libc::uid_t, gid: libc::gid_t) -> io::Result<()> {
    // SAFETY: no pointers.
    sys::check(unsafe { libc::syscall(libc::SYS_fchown, fd, uid, gid) }).map(drop)
}

/// Without the bits that give a program power. In another group nobody has more than before: its
/// members were all the others, and those of the old group are among the others now.
fn mode(was: libc::mode_t, same_group: bool) -> libc::mode_t {
    match same_group {
        true => was & 0o777,
        false => was & 0o700 | (was & (was >> 3) & 0o007),
    }
}

/// The host's file is another one by now.
fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
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

/// In P0, when every process is dead. Also lines for what is on the host in neither place.
pub fn finish(held: &[Held], places: &[Place], plan: &Plan, aside: &Aside) -> (Vec<Copied>, Vec<String>) {
    let mut lost = vec![];
    let one = |(number, (held, asked)): (usize, (&Held, &Copyback))| {
        let path = show(asked.source.as_bytes());
        let (result, kept) = match left(places, plan, &asked.target) {
            Err(result) => (result, None),
            Ok((_, entry)) if held.before.as_ref().is_some_and(|(_, was)| untouched(was, &entry)) => {
                (Outcome::Unchanged, None)
            }
            Ok((content, _)) => back(held, &content, aside, number),
        };
        let kept = kept.transpose().unwrap_or_else(|e| {
            lost.push(format!("copyback of {path}: the box's version could not be kept: {e}"));
            None
        });
        // Nothing at the start and nothing at the end.
        let result = if result == Outcome::Removed && held.before.is_none() { Outcome::Unchanged } else { result };
        Copied { path, result, kept }
    };
    let copied = held.iter().zip(&plan.copyback).enumerate().map(one).collect();
    (copied, lost)
}

fn untouched(was: &Entry, now: &Entry) -> bool {
    was.size() == now.size() && was.mtime() == now.mtime()
}

/// What the command left under the name, as it is there now.
fn left(places: &[Place], plan: &Plan, target: &str) -> Result<(Vec<u8>, Entry), Outcome> {
    let inside = |place: &String| target.strip_prefix(place.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let found = plan.discards.iter().zip(places).filter_map(|(place, held)| Some((inside(place)?, held)));
    let (name, place) = found.min_by_key(|(rest, _)| rest.len()).ok_or(Outcome::Failed)?;
    let file = taken(place.fd.as_raw_fd(), name.as_bytes())?;
    let failed = |_| Outcome::Failed;
    let entry = Entry::of(file.as_raw_fd(), c"").map_err(failed)?;
    let mut content = vec![];
    file.take(MAX_BYTES + 1).read_to_end(&mut content).map_err(failed)?;
    match content.len() as u64 > MAX_BYTES {
        true => Err(Outcome::TooLarge),
        false => Ok((content, entry)),
    }
}

/// The regular file under a path that the command made, opened; no link of the way or at its end is followed.
fn taken(place: RawFd, path: &[u8]) -> Result<File, Outcome> {
    let why = |e: io::Error| match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Outcome::Removed,
        Some(libc::ELOOP | libc::EXDEV) => Outcome::NotAFile,
        _ => Outcome::Failed,
    };
    let (dir, name) = reach(place, path).map_err(why)?;
    let open = |flags| sys::openat2_c(dir.as_raw_fd(), &name, flags | libc::O_NOFOLLOW, RESOLVE);
    // Of the object itself: between two looks at a name there may be another one under it.
    let is_file = |fd: &OwnedFd| Entry::of(fd.as_raw_fd(), c"").is_ok_and(|it| it.is_plain() && !it.is_link());
    let held = open(libc::O_PATH).map_err(why)?;
    if !is_file(&held) {
        return Err(Outcome::NotAFile);
    }
    // Shut by the command, whose own file it is.
    let opened = open(libc::O_RDONLY | libc::O_NONBLOCK).or_else(|_| {
        sys::chmod_held(held.as_raw_fd(), 0o600)?;
        open(libc::O_RDONLY | libc::O_NONBLOCK)
    });
    opened.ok().filter(is_file).map(File::from).ok_or(Outcome::NotAFile)
}

/// What was done, and where the content was kept aside, if that was needed.
fn back(held: &Held, content: &[u8], aside: &Aside, number: usize) -> (Outcome, Option<io::Result<String>>) {
    let result = match held.is_same() {
        false => Outcome::Conflict,
        true => match held.replace(content) {
            Ok(()) => return (Outcome::Written, None),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ESTALE | libc::EEXIST)) => Outcome::Conflict,
            Err(_) => Outcome::Failed,
        },
    };
    (result, Some(aside.keep(content, number)))
}

/// `copyback/RUN` of the state home.
pub struct Aside<'a> {
    pub state_home: &'a str,
    pub run_id: &'a str,
}

impl Aside<'_> {
    fn keep(&self, content: &[u8], number: usize) -> io::Result<String> {
        let here = sys::open_made(self.state_home, ["copyback", self.run_id])?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let name = sys::cstr(&number.to_string())?;
        let mut file = File::from(sys::openat(here.as_raw_fd(), &name, flags, 0o600)?);
        let whole = file.write_all(content).and_then(|()| sys::fsync(file.as_raw_fd()));
        if whole.is_err() {
            let _ = sys::unlink(here.as_raw_fd(), &name);
        }
        whole?;
        Ok(format!("{}/copyback/{}/{number}", self.state_home, self.run_id))
    }
}

#[cfg(test)]
mod tests {
    use super::mode;

    #[test]
    fn in_another_group_nobody_gets_more_than_before() {
        for (was, now) in
            [(0o640, 0o600), (0o664, 0o604), (0o604, 0o600), (0o4755, 0o705), (0o600, 0o600), (0o677, 0o607)]
        {
            assert_eq!(mode(was, false), now, "{was:o}");
            assert_eq!(mode(was, true), was & 0o777);
        }
    }
}
