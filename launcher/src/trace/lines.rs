//! What the tracer writes: one JSON line for each different use of a name.
//!
//! Owns the form and the bounds. A program that uses ever new names is cut, and the
//! last line says so; that line is missing where the tracer was killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;

use serde::Serialize;

use crate::errno;
use crate::trace::calls::{Named, Target};

const MAX_LINES: usize = 200_000;
const MAX_BYTES: usize = 64 << 20;

#[derive(Serialize)]
struct Line<'a> {
    call: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<&'a str>,
    write: bool,
    /// `ok`, or the name of the error.
    result: &'a str,
}

#[derive(Serialize)]
struct Last {
    end: bool,
    /// Different uses that were written.
    lines: usize,
    /// Uses that came after the bound was reached, repetitions included.
    cut: u64,
}

pub struct Lines {
    out: BufWriter<File>,
    /// By hash: a program that makes two of them alike hides only its own lines.
    seen: BTreeSet<u64>,
    size: usize,
    cut: u64,
    broken: bool,
}

impl Lines {
    pub fn new(file: OwnedFd) -> Lines {
        Lines { out: BufWriter::new(File::from(file)), seen: BTreeSet::new(), size: 0, cut: 0, broken: false }
    }

    pub fn add(&mut self, call: &str, named: &Named, result: i64) {
        let (path, socket, address) = match &named.target {
            Target::Path(text) => (Some(text.as_str()), None, None),
            Target::Socket(text) => (None, Some(text.as_str()), None),
            Target::Address(text) => (None, None, Some(text.as_str())),
        };
        let answer = match i32::try_from(-result) {
            Ok(number) if (1..4096).contains(&number) => errno::label(number),
            _ => "ok".to_string(),
        };
        let line = Line { call, path, socket, address, write: named.write, result: &answer };
        self.put(&serde_json::to_vec(&line).unwrap_or_default());
    }

    fn put(&mut self, line: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(line);
        let hash = hasher.finish();
        if self.seen.contains(&hash) {
            return;
        }
        if self.seen.len() >= MAX_LINES || self.size + line.len() >= MAX_BYTES {
            self.cut += 1;
            return;
        }
        self.seen.insert(hash);
        self.size += line.len() + 1;
        self.broken |= self.out.write_all(&[line, b"\n"].concat()).is_err();
    }

    /// True when everything has been written.
    pub fn finish(mut self) -> bool {
        let last = Last { end: true, lines: self.seen.len(), cut: self.cut };
        let text = serde_json::to_string(&last).unwrap_or_default();
        let written = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
        written.is_ok() && !self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    fn written(feed: impl Fn(&mut Lines)) -> Vec<String> {
        // SAFETY: the name is static; the new descriptor is owned at once.
        let mut file = unsafe {
            use std::os::fd::FromRawFd;
            File::from_raw_fd(libc::memfd_create(c"trace".as_ptr(), libc::MFD_CLOEXEC))
        };
        let mut lines = Lines::new(file.try_clone().unwrap().into());
        feed(&mut lines);
        assert!(lines.finish());
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_same_use_is_one_line_and_every_other_its_own() {
        let named = |write| Named { target: Target::Path("/a\"\n".into()), write };
        let lines = written(|lines| {
            for result in [0, 7, -2, -2, -13] {
                lines.add("openat", &named(false), result);
            }
            lines.add("openat", &named(true), -13);
        });
        assert_eq!(lines[1], r#"{"call":"openat","path":"/a\"\n","write":false,"result":"ENOENT"}"#);
        assert_eq!((lines.len(), lines[4].as_str()), (5, r#"{"end":true,"lines":4,"cut":0}"#));
    }

    #[test]
    fn more_than_the_bound_is_counted_and_not_written() {
        let lines = written(|lines| {
            for number in 0..MAX_LINES + 5 {
                lines.put(number.to_string().as_bytes());
            }
        });
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert_eq!(lines[MAX_LINES], r#"{"end":true,"lines":200000,"cut":5}"#);
    }
}
