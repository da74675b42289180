//! The directory of journals, `audit/open` of the state home.
//!
//! Owns who may do what there at one time: the one lock that a start takes part in and a move
//! takes, which file belongs to a box that lives and which to one that was killed, and what is
//! forgotten. Fails closed: what cannot be read counts as on every root while it is held.
//! Next: journal.rs (one file).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::asked::Persistence;
use super::journal::{header, Journal, Move};
use super::walk::list_dir;
use super::Snapshot;
use crate::paths::within;
use crate::sys::{make_dir, open_dir};
use crate::{sys, ulid};

/// Who moves files holds it; who starts a box takes part in it for a moment.
const LOCK: &CStr = c".lock";
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// A file name holds so many roots; those beyond are not found again after a crash.
const ROOTS: usize = 8;
/// Left by boxes that were killed, on roots that nobody uses any more.
const LEFT_MAX: usize = 256;
const LEFT_DAYS: u64 = 30;
/// So many of them go with one start, which has better to do.
const FORGET_MAX: usize = 8;

/// The directory of journals.
pub struct Journals {
    pub state_home: String,
    dir: OwnedFd,
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

    pub fn fd(&self) -> RawFd {
        self.dir.as_raw_fd()
    }

    /// Makes the file of a box and locks it before anybody can find it.
    pub fn begin(&self, run_id: &str, watched: &[Persistence]) -> io::Result<Journal<'_>> {
        let name = CString::new([&[run_id.to_owned()], &marks(watched)[..]].concat().join("-"))?;
        let hidden = CString::new(format!(".{run_id}"))?;
        let _starting = self.lock(libc::LOCK_SH)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND;
        let file = File::from(sys::openat(self.fd(), &hidden, flags, 0o600)?);
        if !sys::try_lock(file.as_raw_fd(), libc::LOCK_EX)? {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let mut journal = Journal::held(self, run_id.to_owned(), hidden, file);
        journal.head(watched)?;
        sys::rename(self.fd(), &journal.name, self.fd(), &name)?;
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

    /// The files of boxes that have one of these roots, and those of all others.
    pub fn names_of(&self, watched: &[Persistence]) -> io::Result<(Vec<String>, Vec<String>)> {
        let (names, marks) = (self.names()?, marks(watched));
        let (unfinished, names): (Vec<String>, _) = names.into_iter().partition(|name| name.starts_with('.'));
        self.forget_unfinished(&unfinished);
        let ours = |name: &String| marks.iter().any(|mark| name.split('-').skip(1).any(|m| m == mark));
        Ok(names.into_iter().partition(ours))
    }

    /// A box that was killed; its file is ours alone from here on, and goes with the value. None: a box
    /// that lives, has just ended, or was killed before it had looked: its command never ran.
    pub fn leftover(&self, name: &str) -> Option<Leftover<'_>> {
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
        Ok(free.then(|| Journal::held(self, String::new(), name, file)))
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

    /// The log of killed boxes on roots that nobody uses any more does not grow for ever; how many went.
    /// An identifier begins with its time, so names alone tell the age.
    pub fn forget_old(&self, names: &[String]) -> usize {
        let limit = ulid::earliest(Duration::from_secs(LEFT_DAYS * 24 * 3600));
        let extra = names.len().saturating_sub(LEFT_MAX);
        let old = names.iter().enumerate().filter(|(at, name)| *at < extra || name.as_str() < limit.as_str());
        // What was free is removed by its drop.
        old.filter_map(|(_, name)| self.orphan(name).ok()?).take(FORGET_MAX).map(drop).count()
    }

    /// True when a live box other than `but` has a root at, in or above `root`. An error where it cannot be told.
    pub fn has(&self, root: &str, but: &CStr) -> io::Result<bool> {
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

/// Short marks of the roots, for the file's name: whose it is shows without opening it.
fn marks(watched: &[Persistence]) -> Vec<String> {
    let mark = |root: &str| Sha256::digest(root.as_bytes())[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    watched.iter().take(ROOTS).map(|one| mark(&one.root)).collect()
}
