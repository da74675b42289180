//! Moving new persistence points out of the tree.
//!
//! Owns the rule of what is moved and the move itself. Moved are regular files
//! and symbolic links that are new, on the plan's list, in a repository that was
//! there before, not tracked by git then, and only while no other box has the
//! root; everything else stays and is reported with the reason. Each move is
//! announced in the journal first, goes through descriptors opened no-follow,
//! and is undone when the object that arrived is not the one that was judged.
//! Next: journal.rs.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::Serialize;

use super::asked::{OnPersistence, Quarantine};
use super::journal::{make_dir, open_dir, Journal, Move};
use super::manifest::{Item, Manifest};
use super::walk::{open_root, Entry, Node};
use super::{compile, index, Change, ChangeKind, Root, Snapshot};
use crate::sys;

/// Between file systems the content is copied; a larger file stays where it is.
const COPY_MAX_BYTES: u64 = 64 << 20;
/// For one box; the rest stays and is reported.
const MOVES_MAX: usize = 1_000;

/// Why a change was left where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// It was there before, or is gone.
    NotNew,
    /// A directory, or nothing that is a file or link.
    NotAFile,
    /// On the list to be reported only: ordinary tools make such files.
    ReportedOnly,
    NoRepository,
    /// Below a `.git` that the run made.
    NewRepository,
    Tracked,
    /// The index of the repository could not be read.
    IndexUnread,
    /// The look before the run was cut, so it may have been there.
    Unsure,
    SharedRoot,
    /// It is no longer what was compared.
    Swapped,
    TooLarge,
    TooMany,
    Denied,
}

/// Moves what may be moved; fills in `restore` and `left` of the changes, names that the list spells
/// out first: a box cannot keep them out with many others. `from`: the first number that no earlier
/// move of this run has taken.
pub fn act(before: &Snapshot, changes: &mut [Change], journal: &mut Journal, from: usize) -> Vec<String> {
    let asked = |change: &&mut Change| before.roots[change.found.root].watched.mode == OnPersistence::Quarantine;
    let mut wanted = vec![];
    for change in changes.iter_mut().filter(asked) {
        match judge(&before.roots[change.found.root], change) {
            Ok(()) => wanted.push(change),
            Err(left) => change.left = Some(left),
        }
    }
    if wanted.is_empty() {
        return vec![];
    }
    wanted.sort_by_key(|change| !change.found.spelled);
    let mut mover = Mover::new(journal);
    for (number, change) in wanted.into_iter().enumerate() {
        let root = &before.roots[change.found.root];
        let moved = match &mut mover {
            Err(left) => Err(*left),
            Ok(_) if number >= MOVES_MAX => Err(Left::TooMany),
            Ok(mover) => mover.take(root, change, from + number, journal),
        };
        match moved {
            Ok(restore) => change.restore = Some(restore),
            Err(left) => change.left = Some(left),
        }
    }
    let kept = mover.map_or(Ok(()), |mover| mover.manifest.keep());
    kept.err().map(|e| format!("quarantine: the list of what was moved could not be kept: {e}")).into_iter().collect()
}

/// What a killed box, or whoever compared in its place, had moved before it could say so.
pub fn moved(before: &Snapshot, moves: &[Move], state_home: &str) -> Vec<Change> {
    let there = |step: &&Move| std::fs::symlink_metadata(format!("{state_home}/quarantine/{}", step.to)).is_ok();
    let mut found = vec![];
    for step in moves.iter().filter(there) {
        let Some(root) = before.roots.get(step.root) else { continue };
        let path = step.path();
        found.push(Change {
            root: root.watched.root.clone(),
            path: crate::report::show(&path),
            change: ChangeKind::Created,
            restore: Some(restore_line(state_home, &step.to, root, &path)),
            left: None,
            found: super::Found { root: step.root, path, ..super::Found::default() },
        });
    }
    found
}

fn judge(root: &Root, change: &Change) -> Result<(), Left> {
    let found = &change.found;
    let Some(entry) = found.entry.filter(|_| change.change == ChangeKind::Created) else { return Err(Left::NotNew) };
    let Some(asked) = &root.watched.quarantine else { return Err(Left::NoRepository) };
    if !entry.is_plain() {
        return Err(Left::NotAFile);
    }
    if found.new_repository {
        return Err(Left::NewRepository);
    }
    if !listed(asked, &found.path) {
        return Err(Left::ReportedOnly);
    }
    let seen = &root.state.seen;
    let in_dark =
        |dark: &Vec<u8>| found.path.strip_prefix(&dark[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    if seen.cut || seen.unreadable.iter().any(in_dark) {
        return Err(Left::Unsure);
    }
    match &root.state.tracked {
        None => Err(Left::IndexUnread),
        Some(tracked) if index::holds(tracked, &found.path) => Err(Left::Tracked),
        Some(_) => Ok(()),
    }
}

fn listed(asked: &Quarantine, path: &[u8]) -> bool {
    compile(&asked.names).is_ok_and(|names: Node| names.reaches(path))
}

/// The place of one run, and the lock under which files are moved there.
struct Mover {
    place: OwnedFd,
    manifest: Manifest,
    _lock: OwnedFd,
}

impl Mover {
    fn new(journal: &Journal) -> Result<Self, Left> {
        let lock = journal.lock_moves().map_err(|_| Left::SharedRoot)?;
        let place = place(journal.state_home(), &journal.run_id).map_err(|_| Left::Denied)?;
        let manifest = Manifest::open(place.as_raw_fd()).map_err(|_| Left::Denied)?;
        Ok(Self { place, manifest, _lock: lock })
    }

    /// Moves one file and returns the line that puts it back.
    fn take(&mut self, root: &Root, change: &Change, number: usize, journal: &mut Journal) -> Result<String, Left> {
        if journal.shared(&root.watched.root).unwrap_or(true) {
            return Err(Left::SharedRoot);
        }
        let denied = |_: io::Error| Left::Denied;
        let source = Source::open(root, change)?;
        let name = CString::new(number.to_string()).map_err(|_| Left::Denied)?;
        let to = format!("{}/{number}", journal.run_id);
        let restore = restore_line(journal.state_home(), &to, root, &change.found.path);
        let path = format!("{}/{}", change.root, change.path);
        journal.intend(&Move::new(change.found.root, &change.found.path, &to)).map_err(unwritten)?;
        self.manifest.add(&Item { number, path: &path, restore: &restore }).map_err(denied)?;
        source.move_to(self.place.as_raw_fd(), &name)?;
        sys::fsync(self.place.as_raw_fd()).map_err(denied)?;
        Ok(restore)
    }
}

/// The journal has room for so many moves.
fn unwritten(error: io::Error) -> Left {
    match error.raw_os_error() {
        Some(libc::EFBIG) => Left::TooMany,
        _ => Left::Denied,
    }
}

/// `quarantine/<run id>` of the state home, mode 0700.
fn place(state_home: &str, run_id: &str) -> io::Result<OwnedFd> {
    let home = open_dir(libc::AT_FDCWD, &sys::cstr(state_home)?)?;
    let mut here = home;
    for name in ["quarantine", run_id] {
        let name = sys::cstr(name)?;
        make_dir(here.as_raw_fd(), &name)?;
        here = open_dir(here.as_raw_fd(), &name)?;
    }
    Ok(here)
}

/// One file that was judged, by the descriptor of its directory.
struct Source {
    dir: OwnedFd,
    name: CString,
    entry: Entry,
}

impl Source {
    /// The way there is walked anew from the root, and has to end at the object that was compared.
    fn open(root: &Root, change: &Change) -> Result<Self, Left> {
        let swapped = |_: io::Error| Left::Swapped;
        let top = open_root(&root.watched.root).map_err(swapped)?;
        if Entry::of(top.as_raw_fd(), c"").map_err(swapped)?.identity() != root.state.identity {
            return Err(Left::Swapped);
        }
        let path = &change.found.path;
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = at.map_or((&b"."[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
        let cstring = |bytes: &[u8]| CString::new(bytes).map_err(|_| Left::Swapped);
        let resolve = sys::RESOLVE_BENEATH | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let dir = sys::openat2_c(top.as_raw_fd(), &cstring(above)?, flags, resolve).map_err(swapped)?;
        let source = Self { dir, name: cstring(name)?, entry: change.found.entry.ok_or(Left::Swapped)? };
        match source.is_same(source.dir.as_raw_fd(), &source.name) {
            true => Ok(source),
            false => Err(Left::Swapped),
        }
    }

    /// A rename changes the change time, so that is left out.
    fn is_same(&self, dir: RawFd, name: &std::ffi::CStr) -> bool {
        Entry::of(dir, name).is_ok_and(|now| now.is_same_content(&self.entry))
    }

    fn move_to(&self, place: RawFd, name: &std::ffi::CStr) -> Result<(), Left> {
        let from = self.dir.as_raw_fd();
        match sys::rename(from, &self.name, place, name, true) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EXDEV) => return self.copy_to(place, name),
            // A file system without RENAME_NOREPLACE; nothing of that name is in a directory of ours.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                sys::rename(from, &self.name, place, name, false).map_err(|_| Left::Denied)?;
            }
            Err(_) => return Err(Left::Denied),
        }
        if self.is_same(place, name) {
            return Ok(());
        }
        // Somebody on the host put another object there meanwhile: it goes back, never over a third.
        // Where that cannot be, it stays here and the journal's line says so.
        let _ = sys::rename(place, name, from, &self.name, true);
        Err(Left::Swapped)
    }

    fn copy_to(&self, place: RawFd, name: &std::ffi::CStr) -> Result<(), Left> {
        match self.copy(place, name) {
            Ok(true) => {}
            Ok(false) => return Err(Left::TooLarge),
            Err(_) => {
                // Half a copy; the original is still where it was.
                let _ = sys::unlink(place, name);
                return Err(Left::Denied);
            }
        }
        let from = self.dir.as_raw_fd();
        if !self.is_same(from, &self.name) {
            let _ = sys::unlink(place, name);
            return Err(Left::Swapped);
        }
        sys::unlink(from, &self.name).map_err(|_| Left::Denied)
    }

    /// False when it is too large.
    fn copy(&self, place: RawFd, name: &std::ffi::CStr) -> io::Result<bool> {
        let from = self.dir.as_raw_fd();
        if self.entry.is_link() {
            let target = CString::new(sys::link_target(from, &self.name)?)?;
            // SAFETY: both strings outlive the call.
            return sys::check(i64::from(unsafe { libc::symlinkat(target.as_ptr(), place, name.as_ptr()) }))
                .map(|_| true);
        }
        let source = File::from(sys::openat(from, &self.name, libc::O_RDONLY, 0)?);
        if !Entry::of(source.as_raw_fd(), c"")?.is_same_content(&self.entry) {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        if self.entry.size() > COPY_MAX_BYTES {
            return Ok(false);
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let mut copy = File::from(sys::openat(place, name, flags, self.entry.permissions() & 0o700 | 0o600)?);
        keep_owner(&source, &copy)?;
        // Not io::copy: it would need more of the C library than is there.
        let mut piece = vec![0; 64 << 10];
        let mut left = COPY_MAX_BYTES;
        while let size @ 1.. = (&source).take(left).read(&mut piece)? {
            copy.write_all(&piece[..size])?;
            left -= size as u64;
        }
        sys::fsync(copy.as_raw_fd())?;
        Ok(true)
    }
}

/// A root caller's copy belongs to whom the original belongs.
fn keep_owner(source: &File, copy: &File) -> io::Result<()> {
    let st = sys::fstat(source.as_raw_fd())?;
    // SAFETY: no pointers.
    match unsafe { libc::geteuid() } {
        // SAFETY: as above.
        0 => sys::check(unsafe { libc::syscall(libc::SYS_fchown, copy.as_raw_fd(), st.st_uid, st.st_gid) }).map(drop),
        _ => Ok(()),
    }
}

/// The line that undoes a move: exact, and safe to print, whatever the command called its file.
fn restore_line(state_home: &str, to: &str, root: &Root, path: &[u8]) -> String {
    let from = quoted(format!("{state_home}/quarantine/{to}").as_bytes());
    let back = quoted(&[root.watched.root.as_bytes(), b"/", path].concat());
    format!("mv -nT -- {from} {back}")
}

/// As a shell word. What is not printable is written as `$'\NNN'`, which bash, zsh, ksh and the
/// shell of POSIX.1-2024 read.
fn quoted(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return bytes.iter().map(|byte| char::from(*byte)).collect();
    }
    if bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let one = |byte: &u8| match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\{byte:03o}"),
    };
    format!("$'{}'", bytes.iter().map(one).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_back_exactly_the_bytes_that_were_quoted_and_none_of_them_drives_a_terminal() {
        let names: [&[u8]; 6] =
            [b"/a/.envrc", b"/a b/'c'", b"/\x1b[2J\n\x07", "/é\u{202e}x".as_bytes(), b"/\xff\x01\\7'", b"/$(id)`id`!*"];
        for name in names {
            let word = quoted(name);
            assert!(word.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{word:?}");
            let said = Command::new("bash").args(["-c", &format!("printf %s {word}")]).output().unwrap();
            assert_eq!(said.stdout, name, "{word}");
        }
    }
}
