//! The journal: what was there before each live box, kept where a crash leaves it.
//!
//! Owns one file for each box that watches a write root, in `audit/open` of the
//! state home. Its supervisor holds a lock on it until it has compared and
//! written the end record, then removes it: a file that nobody holds belongs to
//! a box that was killed, and the next launch on one of its roots compares in
//! its place. Boxes also learn from it whether another one has their root.
//! Fails closed: without its file a box is not started. Next: quarantine.rs.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::asked::Persistence;
use super::walk::{list_dir, Entry, Seen};
use super::{Root, Snapshot, State};
use crate::spool::HeldSignal;
use crate::sys::{make_dir, open_dir};
use crate::{sys, ulid};

const SCHEMA: &str = "stockade.journal.v1";
/// Who moves files holds it; who starts a box takes part in it for a moment.
const LOCK: &CStr = c".lock";
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// A file name holds so many roots; those beyond are not found again after a crash.
const ROOTS: usize = 8;
const READ_MAX_BYTES: u64 = 16 << 20;
/// Left by boxes that were killed, on roots that nobody uses any more.
const LEFT_MAX: usize = 256;
const LEFT_DAYS: u64 = 30;

#[derive(Serialize, Deserialize)]
struct Header {
    schema: String,
    run_id: String,
    roots: Vec<Persistence>,
}

/// A line that announces a move before it happens.
#[derive(Serialize, Deserialize, Clone)]
pub struct Move {
    pub root: usize,
    path: String,
    /// Where it goes, below `quarantine` of the state home.
    pub to: String,
}

impl Move {
    pub fn new(root: usize, path: &[u8], to: &str) -> Self {
        Self { root, path: to_text(path), to: to.to_owned() }
    }

    pub fn path(&self) -> Vec<u8> {
        from_text(&self.path)
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    taken_ns: i64,
    identity: (u64, u64),
    entries: Vec<(String, Entry)>,
    repositories: Vec<(String, (u64, u64))>,
    cut: bool,
    unreadable: Vec<String>,
    tracked: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Before(Vec<Stored>),
    Move(Move),
}

/// Bytes of a name as text and back: each byte is the character of its number.
fn to_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn from_text(text: &str) -> Vec<u8> {
    text.chars().map(|c| c as u32 as u8).collect()
}

impl Stored {
    fn of(state: &State) -> Self {
        let names = |list: &Vec<Vec<u8>>| list.iter().map(|name| to_text(name)).collect();
        Self {
            taken_ns: i64::try_from(state.taken_ns).unwrap_or(i64::MAX),
            identity: state.identity,
            entries: state.seen.entries.iter().map(|(name, entry)| (to_text(name), *entry)).collect(),
            repositories: state.seen.repositories.iter().map(|(name, id)| (to_text(name), *id)).collect(),
            cut: state.seen.cut,
            unreadable: names(&state.seen.unreadable),
            tracked: state.tracked.as_ref().map(names),
        }
    }

    fn state(self) -> State {
        let names = |list: Vec<String>| list.iter().map(|name| from_text(name)).collect();
        State {
            taken_ns: i128::from(self.taken_ns),
            identity: self.identity,
            seen: Seen {
                entries: self.entries.into_iter().map(|(name, entry)| (from_text(&name), entry)).collect(),
                repositories: self.repositories.into_iter().map(|(name, id)| (from_text(&name), id)).collect(),
                cut: self.cut,
                unreadable: names(self.unreadable),
            },
            tracked: self.tracked.map(names),
        }
    }
}

/// The directory of journals.
pub struct Journals {
    pub state_home: String,
    dir: OwnedFd,
}

/// One box's file, locked as long as this value lives.
pub struct Journal<'a> {
    all: &'a Journals,
    pub run_id: String,
    name: CString,
    file: File,
}

/// A box that was killed: what it saw, and what it was about to move.
pub struct Leftover<'a> {
    pub journal: Journal<'a>,
    pub before: Snapshot,
    pub moves: Vec<Move>,
}

impl Journals {
    pub fn open(state_home: &str) -> io::Result<Self> {
        let base = open_dir(libc::AT_FDCWD, &sys::cstr(&format!("{state_home}/audit"))?)?;
        let dir = match open_dir(base.as_raw_fd(), c"open") {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                make_dir(base.as_raw_fd(), c"open")?;
                open_dir(base.as_raw_fd(), c"open")?
            }
            other => other?,
        };
        Ok(Self { state_home: state_home.to_owned(), dir })
    }

    fn fd(&self) -> RawFd {
        self.dir.as_raw_fd()
    }

    /// Makes the file of a box and locks it before anybody can find it.
    pub fn begin(&self, run_id: &str, watched: &[Persistence]) -> io::Result<Journal<'_>> {
        let name = CString::new([&[run_id.to_owned()], &marks(watched)[..]].concat().join("-"))?;
        let hidden = CString::new(format!(".{run_id}"))?;
        let header = Header { schema: SCHEMA.to_owned(), run_id: run_id.to_owned(), roots: watched.to_vec() };
        let _starting = self.lock(libc::LOCK_SH)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND;
        let file = File::from(sys::openat(self.fd(), &hidden, flags, 0o600)?);
        sys::try_lock(file.as_raw_fd(), libc::LOCK_EX)?;
        let mut journal = Journal { all: self, run_id: run_id.to_owned(), name: hidden, file };
        journal.line(&header)?;
        sys::rename(self.fd(), &journal.name, self.fd(), &name, false)?;
        journal.name = name;
        Ok(journal)
    }

    /// Takes part in, or takes, the one lock; it ends with the descriptor.
    pub fn lock(&self, how: i32) -> io::Result<OwnedFd> {
        let file = sys::openat(self.fd(), LOCK, libc::O_RDWR | libc::O_CREAT, 0o600)?;
        let until = Instant::now() + LOCK_WAIT;
        while !sys::try_lock(file.as_raw_fd(), how)? {
            if Instant::now() >= until {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(file)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let (names, _) = list_dir(self.fd(), usize::MAX)?;
        let mut names: Vec<String> = names.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect();
        names.retain(|name| name.as_bytes() != LOCK.to_bytes());
        names.sort_unstable();
        Ok(names)
    }

    /// Boxes that were killed while they had one of these roots. Each is ours alone from here on.
    pub fn leftovers(&self, watched: &[Persistence]) -> io::Result<Vec<Leftover<'_>>> {
        let (names, marks) = (self.names()?, marks(watched));
        self.forget_old(&names);
        let ours = names.iter().filter(|name| marks.iter().any(|mark| name.split('-').skip(1).any(|m| m == mark)));
        Ok(ours.filter_map(|name| self.leftover(name)).collect())
    }

    fn leftover(&self, name: &str) -> Option<Leftover<'_>> {
        let (mut journal, text) = self.orphan(name)?;
        let mut lines = text.lines();
        let header: Option<Header> = lines.next().and_then(|line| serde_json::from_str(line).ok());
        let header = header.filter(|header| header.schema == SCHEMA && name.starts_with(&header.run_id));
        let lines: Vec<Line> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        let (mut before, mut moves) = (None, vec![]);
        for line in lines {
            match line {
                Line::Before(states) => before = Some(states),
                Line::Move(step) => moves.push(step),
            }
        }
        // Killed before it had looked: its command never ran.
        let (header, before) = header.zip(before).filter(|(h, before)| h.roots.len() == before.len())?;
        let roots =
            header.roots.into_iter().zip(before).map(|(watched, stored)| Root::remembered(watched, stored.state()));
        let before = Snapshot { roots: roots.collect::<io::Result<_>>().ok()? };
        journal.run_id = header.run_id;
        Some(Leftover { journal, before, moves })
    }

    /// A file that nobody holds, locked for us, and what is in it.
    fn orphan(&self, name: &str) -> Option<(Journal<'_>, String)> {
        let name = CString::new(name).ok()?;
        let file = File::from(sys::openat(self.fd(), &name, libc::O_RDWR | libc::O_APPEND, 0).ok()?);
        // No link left: its box has just ended, or somebody else has taken it over.
        let free =
            sys::try_lock(file.as_raw_fd(), libc::LOCK_EX).ok()? && sys::fstat(file.as_raw_fd()).ok()?.st_nlink > 0;
        let mut text = String::new();
        free.then(|| file.as_fd().try_clone_to_owned().ok())??;
        (&file).take(READ_MAX_BYTES).read_to_string(&mut text).ok()?;
        Some((Journal { all: self, run_id: String::new(), name, file }, text))
    }

    /// The log of killed boxes on roots that nobody uses any more does not grow for ever. An identifier
    /// begins with its time, so names alone tell the age.
    fn forget_old(&self, names: &[String]) {
        let limit = ulid::earliest(Duration::from_secs(LEFT_DAYS * 24 * 3600));
        let extra = names.len().saturating_sub(LEFT_MAX);
        let old = |(at, name): &(usize, &String)| *at < extra || name.trim_start_matches('.') < limit.as_str();
        for (_, name) in names.iter().enumerate().filter(old).take(ROOTS) {
            drop(self.orphan(name));
        }
    }

    /// True when a live box other than `but` has a root at, in or above `root`.
    fn has(&self, root: &str, but: &CStr) -> io::Result<bool> {
        let names = self.names()?;
        let others = names.iter().filter(|name| name.as_bytes() != but.to_bytes() && !name.starts_with('.'));
        Ok(others
            .filter_map(|name| self.live_roots(name))
            .flatten()
            .any(|other| within(&other, root) || within(root, &other)))
    }

    fn live_roots(&self, name: &str) -> Option<Vec<String>> {
        let file = File::from(sys::openat(self.fd(), &CString::new(name).ok()?, libc::O_RDONLY, 0).ok()?);
        if sys::try_lock(file.as_raw_fd(), libc::LOCK_EX).ok()? {
            return None;
        }
        let mut text = String::new();
        file.take(READ_MAX_BYTES).read_to_string(&mut text).ok()?;
        let header: Header = serde_json::from_str(text.lines().next()?).ok()?;
        Some(header.roots.into_iter().map(|watched| watched.root).collect())
    }
}

impl Journal<'_> {
    /// Called before the command runs.
    pub fn record(&mut self, before: &Snapshot) -> io::Result<()> {
        self.line(&Line::Before(before.roots.iter().map(|root| Stored::of(&root.state)).collect()))
    }

    /// Called before each file is moved; on the disk when it returns.
    pub fn intend(&mut self, step: &Move) -> io::Result<()> {
        self.line(&Line::Move(step.clone()))?;
        sys::fsync(self.file.as_raw_fd())
    }

    pub fn state_home(&self) -> &str {
        &self.all.state_home
    }

    /// Held while files are moved: no box starts meanwhile, so none has the roots unseen.
    pub fn lock_moves(&self) -> io::Result<OwnedFd> {
        self.all.lock(libc::LOCK_EX)
    }

    pub fn shared(&self, root: &str) -> io::Result<bool> {
        self.all.has(root, &self.name)
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_string(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        text.push('\n');
        let _held = HeldSignal::hold(libc::SIGXFSZ);
        self.file.write_all(text.as_bytes())
    }
}

/// Everything is said and done, or nothing was started: the file goes. A box that is killed does
/// not come here, and its file stays.
impl Drop for Journal<'_> {
    fn drop(&mut self) {
        // What cannot be removed is taken for a killed box, and compared once more.
        let _ = sys::unlink(self.all.fd(), &self.name);
    }
}

/// Short marks of the roots, for the file's name: whose it is shows without opening it.
fn marks(watched: &[Persistence]) -> Vec<String> {
    let mark = |root: &str| Sha256::digest(root.as_bytes())[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    watched.iter().take(ROOTS).map(|one| mark(&one.root)).collect()
}

fn within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
