//! The walk over persistence points: patterns, entries, directories.
//!
//! Owns the bounded, no-follow walk. The box owns the tree that is walked, and
//! may be changing it: nothing but directories is opened, each from the
//! descriptor of its parent. Fails closed: what cannot be read is listed in
//! `Seen::unreadable`, what a bound cut off sets `Seen::cut`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use super::distant::is_distant;
use crate::byparts::{open_canonical, open_on_mount};
use crate::glob::{matches, Case};
use crate::sys::open_dir;

/// Entries that one `*` or `**` may look at.
pub const PATTERN_ENTRIES: usize = 2_000;
/// Entries that all patterns of one root may look at together: nested stars multiply.
const ROOT_ENTRIES: usize = 16_000;
/// So many names are asked for one by one; for more a small directory is read instead.
const FEW: usize = 4;
const SMALL: usize = 500;
/// Levels below a `**`.
pub const DEPTH: usize = 8;

/// The watched names of a root as a tree, so that a missing `.git` costs one
/// call and not one for each name below it.
#[derive(Debug, Default)]
pub struct Node {
    /// The name itself is recorded.
    wanted: bool,
    /// Everything below is recorded.
    recursive: bool,
    literals: BTreeMap<Vec<u8>, Node>,
    globs: BTreeMap<Vec<u8>, Node>,
}

impl Node {
    /// Reads patterns; the error names the one that has no meaning.
    pub fn compile(names: &[String]) -> Result<Self, String> {
        let mut top = Self::default();
        for name in names {
            top.insert(name)?;
        }
        Ok(top)
    }

    fn insert(&mut self, name: &str) -> Result<(), String> {
        let fault = || {
            format!("persistence name {name:?}: expected a relative path, `*` inside a component, `**` only at the end")
        };
        let mut node = self;
        let mut parts = name.split('/').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            if matches!(part, "" | "." | "..")
                || part.contains('\0')
                || (part.contains("**") && !(last && part == "**"))
            {
                return Err(fault());
            }
            if part == "**" {
                node.recursive = true;
                return Ok(());
            }
            let map = if part.contains('*') { &mut node.globs } else { &mut node.literals };
            node = map.entry(part.as_bytes().to_vec()).or_default();
        }
        node.wanted = true;
        Ok(())
    }

    /// The nodes that a name of the top fits.
    pub fn of<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Node> {
        let globs = self.globs.iter().filter(|(pattern, _)| matches(pattern, name, Case::Exact));
        self.literals.get(name).into_iter().chain(globs.map(|(_, node)| node))
    }

    /// True when a path is watched, leads to a watched one or lies below one.
    pub fn reaches(&self, path: &[u8]) -> bool {
        let (first, rest) = match path.iter().position(|byte| *byte == b'/') {
            Some(at) => (&path[..at], Some(&path[at + 1..])),
            None => (path, None),
        };
        self.recursive || self.of(first).any(|node| rest.is_none_or(|rest| node.reaches(rest)))
    }

    /// True for a path that was given without a pattern.
    pub fn spells(&self, path: &[u8]) -> bool {
        let mut parts = path.split(|byte| *byte == b'/');
        let last = parts.try_fold(self, |node, part| node.literals.get(part));
        last.is_some_and(|node| node.wanted)
    }

    fn has_children(&self) -> bool {
        self.recursive || !self.literals.is_empty() || !self.globs.is_empty()
    }
}

/// What a walk found.
#[derive(Default)]
pub struct Seen {
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// Directories called `.git`, by their object: what lies below a new one belongs to it.
    pub repositories: BTreeMap<Vec<u8>, (u64, u64)>,
    pub cut: bool,
    pub unreadable: Vec<Vec<u8>>,
}

/// Looks at every name of the tree `names` below an open root.
pub fn look_at(root: RawFd, names: &Node) -> Seen {
    let mut walk = Walk { seen: Seen::default(), left: ROOT_ENTRIES };
    walk.children(root, b"", names);
    walk.seen
}

/// Looks at one name of an open root and at what `node` names below it.
pub fn look_in(root: RawFd, name: &[u8], node: &Node) -> Seen {
    let mut walk = Walk { seen: Seen::default(), left: ROOT_ENTRIES };
    walk.visit(root, b"", name, node, false);
    walk.seen
}

struct Walk {
    seen: Seen,
    left: usize,
}

impl Walk {
    /// Names first, stars after them: a box that fills a directory with junk to
    /// use up the bounds cannot hide a name that is spelled out.
    fn children(&mut self, dir: RawFd, at: &[u8], node: &Node) {
        let there = (node.literals.len() > FEW).then(|| small_listing(dir)).flatten();
        for (name, child) in &node.literals {
            if there.as_ref().is_none_or(|names| names.contains(&name.to_ascii_lowercase())) {
                self.visit(dir, at, name, child, false);
            }
        }
        for (pattern, child) in &node.globs {
            for name in self.list(dir, at, PATTERN_ENTRIES) {
                if matches(pattern, &name, Case::Exact) {
                    self.visit(dir, at, &name, child, true);
                }
            }
        }
        if node.recursive {
            let mut left = PATTERN_ENTRIES;
            self.below(dir, at, &mut left, DEPTH);
        }
    }

    fn visit(&mut self, dir: RawFd, at: &[u8], name: &[u8], node: &Node, of_pattern: bool) {
        match at.is_empty() && of_pattern && !node.wanted {
            true => self.look_into(dir, name, node),
            false => self.look_upon(dir, at, name, node),
        }
    }

    fn look_upon(&mut self, dir: RawFd, at: &[u8], name: &[u8], node: &Node) {
        let Some((entry, path, name)) = self.entry(dir, at, name) else { return };
        // A symbolic link or file where a directory is expected is a finding too: it may take the place
        // of the whole subtree.
        if node.wanted || !entry.is_dir() {
            self.seen.entries.insert(path.clone(), entry);
        }
        if node.has_children() && entry.is_dir() {
            match open_dir(dir, &name) {
                Ok(child) => self.children(child.as_raw_fd(), &path, node),
                Err(_) => self.seen.unreadable.push(path),
            }
        }
    }

    /// Of `*/.git`, which every name of the top fits: none of those is a finding, and a file system that
    /// hangs may be mounted on one.
    fn look_into(&mut self, dir: RawFd, name: &[u8], node: &Node) {
        let Ok(text) = CString::new(name) else { return };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        match open_on_mount(dir, &text, flags).map_err(|e| e.raw_os_error()) {
            Ok(child) => {
                if name == b".git" {
                    let identity = Entry::of(child.as_raw_fd(), c"").map(|entry| entry.identity());
                    self.seen.repositories.extend(identity.ok().map(|identity| (name.to_vec(), identity)));
                }
                self.children(child.as_raw_fd(), name, node);
            }
            Err(Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => {}
            Err(Some(libc::EXDEV)) if !is_distant(dir, &text) => self.look_upon(dir, b"", name, node),
            Err(_) => self.seen.unreadable.push(name.to_vec()),
        }
    }

    /// Everything below a directory, as far as the bounds go.
    fn below(&mut self, dir: RawFd, at: &[u8], left: &mut usize, depth: usize) {
        let names = self.list(dir, at, *left);
        *left -= names.len();
        for name in names {
            let Some((entry, path, name)) = self.entry(dir, at, &name) else { continue };
            self.seen.entries.insert(path.clone(), entry);
            if !entry.is_dir() {
                continue;
            }
            match open_dir(dir, &name) {
                // Looks whether there is more, without taking any of it.
                Ok(child) if depth <= 1 => drop(self.list(child.as_raw_fd(), &path, 0)),
                Ok(child) => self.below(child.as_raw_fd(), &path, left, depth - 1),
                Err(_) => self.seen.unreadable.push(path),
            }
        }
    }

    fn entry(&mut self, dir: RawFd, at: &[u8], name: &[u8]) -> Option<(Entry, Vec<u8>, CString)> {
        let path = join(at, name);
        let name = CString::new(name).ok()?;
        match Entry::of(dir, &name) {
            Ok(entry) => {
                if entry.is_dir() && name.as_bytes() == b".git" {
                    self.seen.repositories.insert(path.clone(), entry.identity());
                }
                Some((entry, path, name))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
            Err(_) => {
                self.seen.unreadable.push(path);
                None
            }
        }
    }

    fn list(&mut self, dir: RawFd, at: &[u8], most: usize) -> Vec<Vec<u8>> {
        let most = most.min(self.left);
        match list_dir(dir, most) {
            Ok((names, cut)) => {
                self.left -= names.len();
                self.seen.cut |= cut;
                names
            }
            Err(_) => {
                self.seen.unreadable.push(at.to_vec());
                Vec::new()
            }
        }
    }
}

fn join(at: &[u8], name: &[u8]) -> Vec<u8> {
    if at.is_empty() {
        return name.to_vec();
    }
    [at, name].join(&b'/')
}

/// What is recorded of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    dev: u64,
    ino: u64,
    mode: u32,
    size: i64,
    mtime_ns: i128,
    pub ctime_ns: i128,
}

impl Entry {
    /// Stats one name of an open directory, or with an empty name the
    /// descriptor itself; follows nothing, triggers no automount.
    pub fn of(dir: RawFd, name: &CStr) -> io::Result<Self> {
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
        // SAFETY: stat is plain data, all zero is a value of it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the name is NUL-terminated; stat outlives the call.
        if unsafe { libc::fstatat(dir, name.as_ptr(), &mut stat, flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            size: stat.st_size,
            mtime_ns: nanos(stat.st_mtime, stat.st_mtime_nsec),
            ctime_ns: nanos(stat.st_ctime, stat.st_ctime_nsec),
        })
    }

    /// Which object it is, whatever its name.
    pub fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// What may be moved away: a regular file or a symbolic link.
    pub fn is_plain(&self) -> bool {
        matches!(self.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK)
    }

    pub fn size(&self) -> u64 {
        self.size as u64
    }

    pub fn mtime(&self) -> (i64, i64) {
        (self.mtime_ns.div_euclid(1_000_000_000) as i64, self.mtime_ns.rem_euclid(1_000_000_000) as i64)
    }

    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// The same object with the same content, though a rename has changed its change time.
    pub fn is_same_content(&self, other: &Self) -> bool {
        !self.is_dir() && Self { ctime_ns: other.ctime_ns, ..*self } == *other
    }

    pub fn is_link(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFLNK
    }

    /// A directory changes its times and size with its names, which are watched
    /// by themselves; of it only object and mode count. The modification time of
    /// a file can be set back by its owner, the change time cannot.
    pub fn differs(&self, other: &Self) -> bool {
        let same_object = self.identity() == other.identity() && self.mode == other.mode;
        !same_object || (!self.is_dir() && self != other)
    }
}

fn nanos(seconds: i64, nanos: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanos)
}

/// The entry of a relative path, component by component, or nothing.
pub fn lookup(root: RawFd, path: &[u8]) -> Option<Entry> {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let last = CString::new(parts.pop()?).ok()?;
    let mut held: Option<OwnedFd> = None;
    for part in parts {
        let dir = held.as_ref().map_or(root, |fd| fd.as_raw_fd());
        held = Some(open_dir(dir, &CString::new(part).ok()?).ok()?);
    }
    Entry::of(held.as_ref().map_or(root, |fd| fd.as_raw_fd()), &last).ok()
}

/// Of descriptors or memory, this process or the machine: that says nothing of what was looked at.
pub fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Opens a root by its canonical path; a link in any component is refused.
pub fn open_root(path: &str) -> io::Result<OwnedFd> {
    open_canonical(path, libc::O_RDONLY | libc::O_DIRECTORY)
}

/// Names of a small directory in lower case, or nothing where only a lookup can tell:
/// in a directory without case (inode flag `F`, chattr(1)) other letters may be the same name.
fn small_listing(dir: RawFd) -> Option<BTreeSet<Vec<u8>>> {
    let (names, cut) = list_dir(dir, SMALL).ok()?;
    let plain = !cut && names.iter().all(|name| name.is_ascii());
    plain.then(|| names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
}

/// Names of a directory, at most `most`, and whether there were more. The
/// descriptor's own position is used, so it is rewound first.
pub fn list_dir(dir: RawFd, most: usize) -> io::Result<(Vec<Vec<u8>>, bool)> {
    // SAFETY: takes no pointer.
    if unsafe { libc::lseek(dir, 0, libc::SEEK_SET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let mut buffer = Box::<[u8]>::new_uninit_slice(8192); // a caller may have left us 32 KB of stack
    loop {
        // SAFETY: pointer and length describe the buffer, which outlives the call.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, dir, buffer.as_mut_ptr(), buffer.len()) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        if got == 0 {
            return Ok((names, false));
        }
        // SAFETY: the kernel has written the first `got` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), got as usize) };
        for name in DirNames(bytes) {
            if names.len() == most {
                return Ok((names, true));
            }
            names.push(name.to_vec());
        }
    }
}

/// Iterates over `struct linux_dirent64` records. Source: getdents64(2).
struct DirNames<'a>(&'a [u8]);

impl<'a> Iterator for DirNames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        const LENGTH: usize = offset_of!(libc::dirent64, d_reclen);
        const NAME: usize = offset_of!(libc::dirent64, d_name);
        loop {
            let length = usize::from(u16::from_ne_bytes(self.0.get(LENGTH..LENGTH + 2)?.try_into().ok()?));
            let record = self.0.get(..length)?;
            self.0 = &self.0[length..];
            let name = CStr::from_bytes_until_nul(record.get(NAME..)?).ok()?.to_bytes();
            if name != b"." && name != b".." {
                return Some(name);
            }
        }
    }
}
