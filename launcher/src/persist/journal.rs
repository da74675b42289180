//! The journal: what was there before a live box, kept where a crash leaves it.
//!
//! Owns the one file of a box that watches a write root. Its supervisor holds a
//! lock on it until it has compared and written the end record, then removes it:
//! a file that nobody holds belongs to a box that was killed, and the next launch
//! on one of its roots compares in its place. Fails closed: without its file a
//! box is not started, one that cannot be read is named. Its size is bounded when
//! it is written, because a box chooses the names that are noted.
//! Next: journals.rs (the directory), stored.rs, quarantine.rs.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::asked::Persistence;
use super::journals::Journals;
use super::stored::{from_text, stored, to_text, Stored};
use super::{Root, Snapshot};
use crate::spool::HeldSignal;
use crate::sys;

const SCHEMA: &str = "stockade.journal.v1";
/// The first line, which is read apart: whose roots these are.
const HEADER_MAX_BYTES: usize = 1 << 20;
/// A whole file. Written is never more than is read.
const MAX_BYTES: usize = 16 << 20;
/// What may be noted of before; the rest is for moves.
const BEFORE_MAX_BYTES: usize = 8 << 20;

#[derive(Serialize, Deserialize)]
pub struct Header {
    schema: String,
    run_id: String,
    pub roots: Vec<Persistence>,
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

    /// The first number that none of these may have taken. Not how many they are: a file that was
    /// not moved after all has a number, too, and no line.
    pub fn next_number(moves: &[Self]) -> usize {
        let number = |step: &Self| step.to.rsplit('/').next().and_then(|name| name.parse::<usize>().ok());
        moves.iter().filter_map(number).max().map_or(0, |last| last + 1)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Before(Vec<Stored>),
    Move(Move),
}

pub fn json(value: &impl Serialize) -> io::Result<String> {
    serde_json::to_string(value).map_err(|_| invalid())
}

fn invalid() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

/// One box's file, locked as long as this value lives.
pub struct Journal<'a> {
    all: &'a Journals,
    pub run_id: String,
    /// Of the file, in the directory of all.
    pub name: CString,
    file: File,
    size: usize,
    /// For the next launch on these roots.
    stays: bool,
}

/// The first line, however long the rest is, and what was read of the rest with it.
pub fn header(mut file: &File) -> io::Result<(Header, Vec<u8>)> {
    let (mut text, mut piece) = (vec![], vec![0; 4096]);
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

impl<'a> Journal<'a> {
    /// A file that this process has locked.
    pub fn held(all: &'a Journals, run_id: String, name: CString, file: File) -> Self {
        Self { all, run_id, name, file, size: 0, stays: false }
    }

    /// Whose roots these are.
    pub fn head(&mut self, watched: &[Persistence]) -> io::Result<()> {
        let header = Header { schema: SCHEMA.to_owned(), run_id: self.run_id.clone(), roots: watched.to_vec() };
        self.line(json(&header)?, HEADER_MAX_BYTES)
    }

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
    pub fn read(&mut self) -> io::Result<(Option<Snapshot>, Vec<Move>)> {
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

    /// Leaves the file as a box that is killed does.
    pub fn keep(mut self) {
        self.stays = true;
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
        if !self.stays {
            // What cannot be removed is taken for a killed box, and compared once more.
            let _ = sys::unlink(self.all.fd(), &self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice_however_few_lines_there_are() {
        let step = |to: &str| Move::new(0, b".envrc", to);
        assert_eq!(Move::next_number(&[]), 0);
        assert_eq!(Move::next_number(&[step("R/1")]), 2);
        assert_eq!(Move::next_number(&[step("R/7"), step("R/3")]), 8);
    }
}
