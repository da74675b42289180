//! The journal: what was there before each live box, kept where a crash leaves it.
//!
//! Owns one file for each box that watches a write root, in `audit/open` of the
//! state home. Its supervisor holds a lock on it until it has compared and
//! written the end record, then removes it: a file that nobody holds belongs to
//! a box that was killed, and the next launch on one of its roots compares in
//! its place. Boxes also learn from it whether another one has their root.
//! Fails closed: without its file a box is not started, one that cannot be read
//! counts as on every root while it is held, and is named when nobody does.
//! Its size is bounded when it is written, because a box chooses the names that
//! are noted. Next: quarantine.rs.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
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
/// The first line, which is read apart: whose roots these are.
const HEADER_MAX_BYTES: usize = 1 << 20;
/// A whole file. Written is never more than is read.
const MAX_BYTES: usize = 16 << 20;
/// What may be noted of before; the rest is for moves.
const BEFORE_MAX_BYTES: usize = 8 << 20;
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

#[derive(Serialize, Deserialize, Default)]
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

/// The text of one root; over the bound that nothing is known of it, so nothing is moved there.
fn stored(state: &State, most: usize) -> io::Result<String> {
    let text = json(&Stored::of(state))?;
    match text.len() <= most {
        true => Ok(text),
        false => json(&Stored { taken_ns: taken_ns(state), identity: state.identity, cut: true, ..Stored::default() }),
    }
}

fn taken_ns(state: &State) -> i64 {
    i64::try_from(state.taken_ns).unwrap_or(i64::MAX)
}

fn json(value: &impl Serialize) -> io::Result<String> {
    serde_json::to_string(value).map_err(|_| invalid())
}

fn invalid() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
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
            taken_ns: taken_ns(state),
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
    size: usize,
}

/// A box that was killed.
pub enum Leftover<'a> {
    /// What it saw, and what it was about to move.
    Noted { journal: Journal<'a>, before: Snapshot, moves: Vec<Move> },
    /// What it changed cannot be told any more. The file goes with it, where it could be opened.
    Unread { run_id: String, why: io::Error, _journal: Option<Journal<'a>> },
}

impl Leftover<'_> {
    pub fn state_home(&self) -> Option<&str> {
        match self {
            Self::Noted { journal, .. } => Some(journal.state_home()),
            Self::Unread { .. } => None,
        }
    }

    pub fn run_id(&self) -> &str {
        match self {
            Self::Noted { journal, .. } => &journal.run_id,
            Self::Unread { run_id, .. } => run_id,
        }
    }
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
        let mut journal = Journal { all: self, run_id: run_id.to_owned(), name: hidden, file, size: 0 };
        journal.line(json(&header)?, HEADER_MAX_BYTES)?;
        sys::rename(self.fd(), &journal.name, self.fd(), &name, false)?;
        journal.name = name;
        Ok(journal)
    }

    /// Takes part in, or takes, the one lock; it ends with the descriptor.
    pub fn lock(&self, how: i32) -> io::Result<OwnedFd> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match self.try_lock(how)? {
                Some(file) => return Ok(file),
                None if Instant::now() >= until => return Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn try_lock(&self, how: i32) -> io::Result<Option<OwnedFd>> {
        let file = sys::openat(self.fd(), LOCK, libc::O_RDWR | libc::O_CREAT, 0o600)?;
        Ok(sys::try_lock(file.as_raw_fd(), how)?.then_some(file))
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
        let (unfinished, names): (Vec<String>, _) = names.into_iter().partition(|name| name.starts_with('.'));
        self.forget_unfinished(&unfinished);
        self.forget_old(&names);
        let ours = names.iter().filter(|name| marks.iter().any(|mark| name.split('-').skip(1).any(|m| m == mark)));
        Ok(ours.filter_map(|name| self.leftover(name)).collect())
    }

    /// None: a box that lives, has just ended, or was killed before it had looked: its command never ran.
    fn leftover(&self, name: &str) -> Option<Leftover<'_>> {
        let run_id = name.split('-').next().unwrap_or_default().to_owned();
        let mut journal = match self.orphan(name) {
            Ok(free) => free?,
            Err(why) => return Some(Leftover::Unread { run_id, why, _journal: None }),
        };
        journal.run_id.clone_from(&run_id);
        match journal.read() {
            Ok((before, moves)) => Some(Leftover::Noted { journal, before: before?, moves }),
            Err(why) => Some(Leftover::Unread { run_id, why, _journal: Some(journal) }),
        }
    }

    /// A file that nobody holds, locked for us.
    fn orphan(&self, name: &str) -> io::Result<Option<Journal<'_>>> {
        let name = CString::new(name)?;
        let Some(file) = self.present(&name, libc::O_RDWR | libc::O_APPEND)? else { return Ok(None) };
        // No link left: its box has just ended, or somebody else has taken it over.
        let free = sys::try_lock(file.as_raw_fd(), libc::LOCK_EX)? && sys::fstat(file.as_raw_fd())?.st_nlink > 0;
        Ok(free.then(|| Journal { all: self, run_id: String::new(), name, file, size: 0 }))
    }

    /// None where the file is gone: its box has ended.
    fn present(&self, name: &CStr, flags: i32) -> io::Result<Option<File>> {
        match sys::openat(self.fd(), name, flags, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            other => other.map(|fd| Some(File::from(fd))),
        }
    }

    /// Files of boxes that were killed before theirs had its name: no command of them ran. While the
    /// one lock is held by nobody else, no box is about to name its file.
    fn forget_unfinished(&self, names: &[String]) {
        let alone = || self.try_lock(libc::LOCK_EX).ok()?;
        if let Some(_alone) = (!names.is_empty()).then(alone).flatten() {
            for name in names {
                drop(self.orphan(name)); // what was free is removed
            }
        }
    }

    /// The log of killed boxes on roots that nobody uses any more does not grow for ever. An identifier
    /// begins with its time, so names alone tell the age.
    fn forget_old(&self, names: &[String]) {
        let limit = ulid::earliest(Duration::from_secs(LEFT_DAYS * 24 * 3600));
        let extra = names.len().saturating_sub(LEFT_MAX);
        let old = |(at, name): &(usize, &String)| *at < extra || name.as_str() < limit.as_str();
        for (_, name) in names.iter().enumerate().filter(old).take(ROOTS) {
            drop(self.orphan(name)); // what was free is removed
        }
    }

    /// True when a live box other than `but` has a root at, in or above `root`. An error where it cannot be told.
    fn has(&self, root: &str, but: &CStr) -> io::Result<bool> {
        let names = self.names()?;
        for name in names.iter().filter(|name| name.as_bytes() != but.to_bytes() && !name.starts_with('.')) {
            let roots = self.live_roots(name)?;
            if roots.iter().any(|other| within(other, root) || within(root, other)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// None of a box that has ended.
    fn live_roots(&self, name: &str) -> io::Result<Vec<String>> {
        let Some(file) = self.present(&CString::new(name)?, libc::O_RDONLY)? else { return Ok(vec![]) };
        if sys::try_lock(file.as_raw_fd(), libc::LOCK_EX)? {
            return Ok(vec![]);
        }
        Ok(header(&file)?.0.roots.into_iter().map(|watched| watched.root).collect())
    }
}

/// The first line, however long the rest is, and what was read of the rest with it.
fn header(mut file: &File) -> io::Result<(Header, Vec<u8>)> {
    let (mut text, mut piece) = (vec![], [0; 4096]);
    let end = loop {
        let from = text.len();
        let size = file.read(&mut piece)?;
        text.extend_from_slice(&piece[..size]);
        if let Some(at) = text[from..].iter().position(|byte| *byte == b'\n') {
            break from + at;
        }
        if size == 0 || text.len() > HEADER_MAX_BYTES {
            return Err(invalid());
        }
    };
    let header: Header = serde_json::from_slice(&text[..end]).map_err(|_| invalid())?;
    match header.schema == SCHEMA {
        true => Ok((header, text.split_off(end + 1))),
        false => Err(invalid()),
    }
}

impl Journal<'_> {
    /// Called before the command runs.
    pub fn record(&mut self, before: &Snapshot) -> io::Result<()> {
        let most = BEFORE_MAX_BYTES / before.roots.len().max(1);
        let roots: io::Result<Vec<String>> = before.roots.iter().map(|root| stored(&root.state, most)).collect();
        self.line(format!("{{\"before\":[{}]}}", roots?.join(",")), MAX_BYTES)
    }

    /// Called before each file is moved; on the disk when it returns.
    pub fn intend(&mut self, step: &Move) -> io::Result<()> {
        self.line(json(&Line::Move(step.clone()))?, MAX_BYTES)?;
        sys::fsync(self.file.as_raw_fd())
    }

    /// What was there before, None where nobody had looked yet, and the moves that were announced.
    fn read(&mut self) -> io::Result<(Option<Snapshot>, Vec<Move>)> {
        let (header, mut text) = header(&self.file)?;
        (&self.file).take(MAX_BYTES as u64 + 1).read_to_end(&mut text)?;
        self.size = text.len();
        if self.size > MAX_BYTES || header.run_id != self.run_id {
            return Err(invalid());
        }
        let (mut before, mut moves) = (None, vec![]);
        self.drop_torn(&mut text)?;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match serde_json::from_slice(line).map_err(|_| invalid())? {
                Line::Before(states) => before = Some(states),
                Line::Move(step) => moves.push(step),
            }
        }
        let Some(before) = before else { return Ok((None, moves)) };
        if before.len() != header.roots.len() {
            return Err(invalid());
        }
        let roots =
            header.roots.into_iter().zip(before).map(|(watched, stored)| Root::remembered(watched, stored.state()));
        Ok((Some(Snapshot { roots: roots.collect::<io::Result<_>>()? }), moves))
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

    /// What follows the last end of line was being written when the box was killed, and is not true yet.
    fn drop_torn(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let torn = text.len() - whole;
        if torn > 0 {
            let length = sys::fstat(self.file.as_raw_fd())?.st_size - torn as i64;
            // SAFETY: no pointers.
            sys::check(unsafe { libc::syscall(libc::SYS_ftruncate, self.file.as_raw_fd(), length) })?;
        }
        text.truncate(whole);
        self.size = whole;
        Ok(())
    }

    /// EFBIG where the file would become larger than `most`.
    fn line(&mut self, mut text: String, most: usize) -> io::Result<()> {
        text.push('\n');
        if self.size + text.len() > most {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let _held = HeldSignal::hold(libc::SIGXFSZ);
        self.file.write_all(text.as_bytes())?;
        self.size += text.len();
        Ok(())
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
