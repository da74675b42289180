//! What the command wrote to a private home, and is lost with it.
//!
//! Owns the count of files in the tmpfs places of `discards` of the plan. P1
//! hands their descriptors to P0 before the command runs; P0 looks when the last
//! process of the box is dead, so nothing is swapped under the walk. It never
//! follows a link or enters a mount, and is bounded in entries and time: what a
//! bound cut off is said. Where nothing was written the file systems' own
//! counters say so, and nothing is walked.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::control::Used;
use crate::copyback::Copyback;
use crate::persist::walk::list_dir;
use crate::plan::{invalid, Plan, Row};
use crate::report::{show, Refusal};
use crate::steps::mounts::Root;
use crate::sys;

/// Names in the record: enough to know the tool by.
const NAMED: usize = 10;
const NAME_BYTES: usize = 200;
const ENTRIES_MAX: usize = 20_000;
const TIME_MAX: Duration = Duration::from_millis(100);
pub const RESOLVE: u64 =
    sys::RESOLVE_BENEATH | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS | sys::RESOLVE_NO_XDEV;

/// unix(7): SCM_MAX_FD is 253; a home has a handful of private places.
const DISCARDS_MAX: usize = 32;

/// The count of one box. `complete` false: a bound cut it off, there were more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Discarded {
    pub files: u64,
    pub bytes: u64,
    pub names: Vec<String>,
    pub complete: bool,
}

impl Discarded {
    /// The line for whoever has no receipt. Without names: those are the command's.
    pub fn line(&self) -> Option<String> {
        let (least, s) = (if self.complete { "" } else { "at least " }, if self.files == 1 { "" } else { "s" });
        let said = || format!("written to the private home and thrown away: {least}{} file{s}", self.files);
        (self.files > 0).then(said)
    }
}

/// One private place, as P0 holds it.
pub struct Place {
    pub fd: OwnedFd,
    pub before: Used,
}

/// P1 hands the descriptor of each to P0, in one message.
pub fn check(plan: &Plan) -> Result<(), Refusal> {
    let tmpfs = |target: &String| plan.mounts.iter().any(|r| matches!(r, Row::Tmpfs { target: t, .. } if t == target));
    match plan.discards.iter().find(|target| !tmpfs(target)) {
        Some(target) => Err(invalid("discards", target)),
        None if plan.discards.len() > DISCARDS_MAX => Err(invalid("discards", "too many")),
        None => Ok(()),
    }?;
    let inside = |c: &Copyback| plan.discards.iter().any(|place| c.target.starts_with(&format!("{place}/")));
    match plan.copyback.iter().find(|c| !inside(c)) {
        Some(one) => Err(invalid("copyback", &one.target)),
        None => Ok(()),
    }
}

/// In P1, when everything is built: the places of the plan and what is in them.
pub fn before(root: &Root, targets: &[String]) -> Result<(Vec<RawFd>, Vec<Used>), Refusal> {
    let mut found = (vec![], vec![]);
    for target in targets {
        let fd = root.tmpfs(target).ok_or_else(|| Refusal::new("plan_invalid", "discards"))?;
        found.0.push(fd);
        found.1.push(used(fd).map_err(|e| Refusal::new("mount_denied", target.as_str()).io(&e))?);
    }
    Ok(found)
}

fn used(fd: RawFd) -> io::Result<Used> {
    // SAFETY: statfs is plain data that lives through the call; O_PATH descriptors will do (Linux 3.12).
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        sys::check(libc::syscall(libc::SYS_fstatfs, fd, std::ptr::addr_of_mut!(stat)))?;
        Ok(Used { blocks: stat.f_blocks - stat.f_bfree, inodes: stat.f_files - stat.f_ffree })
    }
}

/// In P0, when every process is dead; nothing when the box did not get as far as a command.
pub fn count(places: &[Place], plan: &Plan) -> Option<Discarded> {
    if places.len() != plan.discards.len() {
        return None;
    }
    let mut found = Discarded { files: 0, bytes: 0, names: vec![], complete: true };
    let mut bounds = Bounds { left: ENTRIES_MAX, until: Instant::now() + TIME_MAX };
    for (place, target) in places.iter().zip(&plan.discards) {
        let (fd, made) = (place.fd.as_raw_fd(), made(plan, target));
        if used(fd).ok() != Some(place.before) || !intact(fd, &made) {
            Walk { place: fd, target, made, found: &mut found, bounds: &mut bounds }.run();
        }
    }
    Some(found)
}

/// What the launcher itself put into a place.
enum Made<'a> {
    Dir,
    Link(&'a str),
    File(&'a str),
    /// Something is mounted there; the command cannot remove it.
    Point,
    /// It goes back to the host: see copyback.rs.
    Kept,
}

/// By name relative to the place.
fn made<'a>(plan: &'a Plan, target: &str) -> BTreeMap<&'a [u8], Made<'a>> {
    let rows = plan.mounts.iter().filter(|row| !matches!(row, Row::Seal { .. }));
    let below = rows.filter_map(|row| Some((row.target().strip_prefix(target)?.strip_prefix('/')?.as_bytes(), row)));
    let kept =
        plan.copyback.iter().filter_map(|one| Some(one.target.strip_prefix(target)?.strip_prefix('/')?.as_bytes()));
    below.map(|(name, row)| (name, Made::of(row))).chain(kept.map(|name| (name, Made::Kept))).collect()
}

impl<'a> Made<'a> {
    fn of(row: &'a Row) -> Self {
        match row {
            Row::Dir { .. } => Made::Dir,
            Row::Symlink { to, .. } => Made::Link(to),
            Row::File { content, .. } => Made::File(content),
            _ => Made::Point,
        }
    }

    /// True while the name is what the launcher made.
    fn holds(&self, dir: RawFd, name: &CStr, st: &libc::stat) -> bool {
        match (self, st.st_mode & libc::S_IFMT) {
            (Made::Kept, _) => true,
            (Made::Dir, libc::S_IFDIR) | (Made::Point, libc::S_IFDIR) => true,
            // A file that is mounted over is an empty one below.
            (Made::Point, libc::S_IFREG) if st.st_size == 0 => true,
            // What is mounted there, of any kind, is none of this place.
            (Made::Point, _) => sys::fstat(dir).is_ok_and(|here| here.st_dev != st.st_dev),
            (Made::Link(to), libc::S_IFLNK) => sys::link_target(dir, name).is_ok_and(|target| target == to.as_bytes()),
            (Made::File(content), libc::S_IFREG) => {
                st.st_size == content.len() as i64 && read(dir, name).is_ok_and(|found| found == content.as_bytes())
            }
            _ => false,
        }
    }
}

/// The counters stay the same when as much was removed as was written: what the command can
/// remove is looked at.
fn intact(place: RawFd, made: &BTreeMap<&[u8], Made>) -> bool {
    let holds = |path: &[u8], made: &Made| {
        let (dir, name) = reach(place, path)?;
        let st = stat(dir.as_raw_fd(), &name)?;
        Ok(made.holds(dir.as_raw_fd(), &name, &st))
    };
    made.iter().filter(|(_, made)| !matches!(made, Made::Point | Made::Kept)).all(|(path, made)| {
        // EXDEV: below a mount of the plan, so not of this place.
        holds(path, made).unwrap_or_else(|e: io::Error| e.raw_os_error() == Some(libc::EXDEV))
    })
}

/// The directory that holds a path of a place, and the name in it. What the command made of the way
/// is not followed: a link would lead on in the namespace of this process, the host's.
pub fn reach(place: RawFd, path: &[u8]) -> io::Result<(OwnedFd, CString)> {
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    let dir = sys::openat2_c(place, &CString::new(parent)?, libc::O_PATH | libc::O_DIRECTORY, RESOLVE)?;
    Ok((dir, CString::new(name)?))
}

fn read(dir: RawFd, name: &CStr) -> io::Result<Vec<u8>> {
    let file = sys::openat2_c(dir, name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, RESOLVE)?;
    let mut bytes = vec![];
    std::fs::File::from(file).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Of one name of a directory: of a path the kernel would follow the links on the way.
fn stat(dir: RawFd, name: &CStr) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data that the kernel fills; name lives through the call.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
        sys::check(i64::from(libc::fstatat(dir, name.as_ptr(), &mut st, flags)))?;
        Ok(st)
    }
}

/// For all places together.
struct Bounds {
    left: usize,
    until: Instant,
}

struct Walk<'a> {
    place: RawFd,
    target: &'a str,
    made: BTreeMap<&'a [u8], Made<'a>>,
    found: &'a mut Discarded,
    bounds: &'a mut Bounds,
}

impl Walk<'_> {
    /// Level by level: what lies at the top of a home says most. Each directory is opened anew from
    /// the place, so a tree of any depth costs no descriptors; a path too long for the kernel is cut.
    fn run(&mut self) {
        let mut queue = VecDeque::from([vec![]]);
        while let Some(at) = queue.pop_front() {
            if self.bounds.left == 0 || Instant::now() >= self.bounds.until {
                self.found.complete = false;
                return;
            }
            let Some((dir, names)) = self.list(&at) else { continue };
            for name in names {
                let path = if at.is_empty() { name.clone() } else { [&at[..], &name].join(&b'/') };
                queue.extend(self.entry(dir.as_raw_fd(), name, path));
            }
        }
    }

    fn list(&mut self, at: &[u8]) -> Option<(OwnedFd, Vec<Vec<u8>>)> {
        let list = |dir: OwnedFd| list_dir(dir.as_raw_fd(), self.bounds.left).map(|listed| (dir, listed));
        match open_dir(self.place, at).and_then(list) {
            Ok((dir, (mut names, cut))) => {
                self.bounds.left -= names.len();
                self.found.complete &= !cut;
                names.sort_unstable();
                Some((dir, names))
            }
            Err(e) => {
                // EXDEV: a mount of the plan; the command cannot make one.
                self.found.complete &= e.raw_os_error() == Some(libc::EXDEV);
                None
            }
        }
    }

    /// Counts what is no directory; a directory comes back, to be walked.
    fn entry(&mut self, dir: RawFd, name: Vec<u8>, path: Vec<u8>) -> Option<Vec<u8>> {
        let name = CString::new(name).ok()?;
        let Ok(st) = stat(dir, &name) else {
            self.found.complete = false;
            return None;
        };
        if st.st_mode & libc::S_IFMT == libc::S_IFDIR {
            return Some(path);
        }
        let made = self.made.get(&path[..]);
        if made.is_some_and(|made| made.holds(dir, &name, &st)) {
            return None;
        }
        self.found.files += 1;
        self.found.bytes += st.st_blocks.max(0) as u64 * 512;
        if self.found.names.len() < NAMED {
            self.found.names.push(shown(self.target, &path));
        }
        None
    }
}

/// The command may have shut the directory. It is its own, and lost anyway: opened up and looked into.
fn open_dir(place: RawFd, path: &[u8]) -> io::Result<OwnedFd> {
    let path = CString::new(if path.is_empty() { b"." } else { path })?;
    let open = |flags| sys::openat2_c(place, &path, flags | libc::O_DIRECTORY | libc::O_NOFOLLOW, RESOLVE);
    match open(libc::O_RDONLY) {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            sys::chmod_held(open(libc::O_PATH)?.as_raw_fd(), 0o700)?;
            open(libc::O_RDONLY)
        }
        other => other,
    }
}

/// Box-chosen text: printable, and short enough for a line.
fn shown(target: &str, path: &[u8]) -> String {
    let mut text = format!("{target}/{}", show(path));
    if text.len() > NAME_BYTES {
        let end = (0..=NAME_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
