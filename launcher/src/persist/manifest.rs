//! The list of what one run moved into quarantine, beside the files.
//!
//! A receipt has room for some changes, a box may make thousands: owns the file that has the way
//! back of every one of them. A line is written before its file is moved, so that it may name one
//! that stayed after all; its `restore` then finds nothing to move. Fails closed: what cannot be
//! listed is not moved. Next: quarantine.rs.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};

use serde::Serialize;

use crate::spool::HeldSignal;
use crate::sys;

const NAME: &CStr = c"manifest.jsonl";

/// One line.
#[derive(Serialize)]
pub struct Item<'a> {
    /// The file's name beside the list.
    pub number: usize,
    /// Where it was, printable.
    pub path: &'a str,
    /// The shell line that puts it back, exact.
    pub restore: &'a str,
}

pub struct Manifest(File);

impl Manifest {
    /// In the place of one run, which belongs to us alone.
    pub fn open(place: RawFd) -> io::Result<Self> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
        sys::openat(place, NAME, flags, 0o600).map(|fd| Self(File::from(fd)))
    }

    pub fn add(&mut self, item: &Item) -> io::Result<()> {
        let mut text = serde_json::to_string(item).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        text.push('\n');
        let _held = HeldSignal::hold(libc::SIGXFSZ);
        self.0.write_all(text.as_bytes())
    }

    /// The journal, which has every move until here, may go once this has returned.
    pub fn keep(&self) -> io::Result<()> {
        sys::fsync(self.0.as_raw_fd())
    }
}

/// Where the list of a run is, when it is there.
pub fn path(state_home: &str, run_id: &str) -> Option<String> {
    let path = format!("{state_home}/quarantine/{run_id}/{}", NAME.to_str().ok()?);
    std::fs::symlink_metadata(&path).is_ok().then_some(path)
}
