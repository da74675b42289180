//! Moving new persistence points out of the tree.
//!
//! Owns the rule of what is moved and the move itself. Moved are regular files
//! and symbolic links that are new, on the plan's list, in a repository that was
//! there before, not tracked by git then, and only while no other box has the
//! root; everything else stays and is reported with the reason. Each move is
//! announced in the journal first, goes through descriptors opened no-follow,
//! and is undone when the object that arrived is not the one that was judged.
//! Next: source.rs for one file's way, journal.rs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::asked::OnPersistence;
use super::journal::{Journal, Move};
use super::manifest::{Item, Manifest};
use super::source::{Source, COPY_MAX_BYTES};
use super::{index, Change, ChangeKind, Root, Snapshot};
use crate::sys;

/// For one box; the rest stays and is reported.
const MOVES_MAX: usize = 1_000;
/// The lock is held for so long at a time; boxes that start wait for it for seconds.
const HOLD: Duration = Duration::from_millis(200);
/// Longer than they pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);

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
    /// Another start or move kept the lock for too long.
    LockBusy,
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
    let mut mover = Mover::new();
    for (number, change) in wanted.into_iter().enumerate() {
        let moved = match number < MOVES_MAX {
            true => mover.take(&before.roots[change.found.root], change, from + number, journal),
            false => Err(Left::TooMany),
        };
        match moved {
            Ok(restore) => change.restore = Some(restore),
            Err(left) => change.left = Some(left),
        }
    }
    mover.finish()
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
    let Some(movable) = &root.movable else { return Err(Left::NoRepository) };
    if !entry.is_plain() {
        return Err(Left::NotAFile);
    }
    if found.new_repository {
        return Err(Left::NewRepository);
    }
    if !movable.reaches(&found.path) {
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

/// The one lock, and what is known while it is held: no box starts meanwhile.
struct Held {
    since: Instant,
    /// Whether another box has a root, by its number.
    shared: BTreeMap<usize, bool>,
    _lock: OwnedFd,
}

/// The place of one run and the list in it, made for the first file that goes there.
struct Store {
    place: OwnedFd,
    manifest: Manifest,
}

impl Store {
    fn open(journal: &Journal) -> io::Result<Self> {
        let place = sys::open_made(journal.state_home(), ["quarantine", &journal.run_id])?;
        Ok(Self { manifest: Manifest::open(place.as_raw_fd())?, place })
    }
}

/// Moves the files of one run.
struct Mover {
    held: Option<Held>,
    store: Option<Store>,
    /// Bytes that copies may still write.
    budget: Cell<u64>,
    /// Somebody keeps the lock: it is not waited for again.
    gave_up: bool,
    /// Moved, but not known to be on the disk.
    unsynced: Option<io::Error>,
}

impl Mover {
    fn new() -> Self {
        Self { held: None, store: None, budget: Cell::new(COPY_MAX_BYTES), gave_up: false, unsynced: None }
    }

    /// Moves one file and returns the line that puts it back.
    fn take(&mut self, root: &Root, change: &Change, number: usize, journal: &mut Journal) -> Result<String, Left> {
        let denied = |_: io::Error| Left::Denied;
        if self.is_shared(root, change.found.root, journal)? {
            return Err(Left::SharedRoot);
        }
        let source = Source::open(root, change)?;
        if self.store.is_none() {
            self.store = Some(Store::open(journal).map_err(denied)?);
        }
        let Some(store) = &mut self.store else { return Err(Left::Denied) };
        let name = CString::new(number.to_string()).map_err(|_| Left::Denied)?;
        let to = format!("{}/{number}", journal.run_id);
        let restore = restore_line(journal.state_home(), &to, root, &change.found.path);
        let path = format!("{}/{}", change.root, change.path);
        journal.intend(&Move::new(change.found.root, &change.found.path, &to)).map_err(unwritten)?;
        store.manifest.add(&Item { number, path: &path, restore: &restore }).map_err(denied)?;
        source.move_to(store.place.as_raw_fd(), &name, &self.budget)?;
        // It has been moved, whatever comes now.
        self.unsynced = sys::fsync(store.place.as_raw_fd()).err().or(self.unsynced.take());
        Ok(restore)
    }

    fn is_shared(&mut self, root: &Root, number: usize, journal: &Journal) -> Result<bool, Left> {
        let shared = &mut self.hold(journal)?.shared;
        Ok(*shared.entry(number).or_insert_with(|| journal.shared(&root.watched.root).unwrap_or(true)))
    }

    /// Takes the lock, or takes it anew: boxes that start wait for it, but not for ever.
    fn hold(&mut self, journal: &Journal) -> Result<&mut Held, Left> {
        if self.gave_up {
            return Err(Left::LockBusy);
        }
        if self.held.take_if(|held| held.since.elapsed() >= HOLD).is_some() {
            std::thread::sleep(PAUSE);
        }
        if self.held.is_none() {
            let lock = journal.lock_moves().map_err(|e| self.not_locked(&e))?;
            self.held = Some(Held { since: Instant::now(), shared: BTreeMap::new(), _lock: lock });
        }
        self.held.as_mut().ok_or(Left::LockBusy)
    }

    fn not_locked(&mut self, error: &io::Error) -> Left {
        self.gave_up = error.raw_os_error() == Some(libc::EAGAIN);
        if self.gave_up {
            Left::LockBusy
        } else {
            Left::Denied
        }
    }

    /// What is to be said of the moves as a whole.
    fn finish(self) -> Vec<String> {
        let unkept = self.store.and_then(|store| store.manifest.keep().err());
        let unkept = unkept.map(|e| format!("quarantine: the list of what was moved could not be kept: {e}"));
        let unsynced =
            self.unsynced.map(|e| format!("quarantine: what was moved may be lost if the machine stops now: {e}"));
        unkept.into_iter().chain(unsynced).collect()
    }
}

/// The journal has room for so many moves.
fn unwritten(error: io::Error) -> Left {
    match error.raw_os_error() {
        Some(libc::EFBIG) => Left::TooMany,
        _ => Left::Denied,
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
    use crate::persist::asked::{Persistence, Quarantine};
    use crate::persist::journals::Journals;
    use std::path::PathBuf;
    use std::process::Command;

    struct Tree(PathBuf);

    impl Tree {
        fn new(files: usize) -> Self {
            let path = std::env::temp_dir().join(format!("quarantine-{}", crate::ulid::ulid().unwrap()));
            for dir in ["root/.vscode", "state/audit/open"] {
                std::fs::create_dir_all(path.join(dir)).unwrap();
            }
            (0..files).for_each(|n| std::fs::write(path.join(format!("root/.vscode/{n}")), "new").unwrap());
            Self(path.canonicalize().unwrap())
        }

        fn at(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_owned()
        }

        /// As it was before there were files in it.
        fn before(&self, names: &[String]) -> Snapshot {
            let hidden = self.0.join("hidden");
            std::fs::rename(self.0.join("root/.vscode"), &hidden).unwrap();
            let quarantine =
                Some(Quarantine { names: names.to_vec(), index: self.at("root/.git/index"), prefix: String::new() });
            let watched = Persistence {
                root: self.at("root"),
                names: names.to_vec(),
                mode: OnPersistence::Quarantine,
                quarantine,
            };
            let before = crate::persist::snapshot(&[watched]).unwrap();
            std::fs::rename(hidden, self.0.join("root/.vscode")).unwrap();
            before
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn what_a_change_costs_does_not_grow_with_the_list() {
        let tree = Tree::new(1_500);
        let names: Vec<String> = (0..5_000).map(|n| format!(".tool{n}/x")).chain([".vscode/*".to_owned()]).collect();
        let before = tree.before(&names);
        let start = Instant::now();
        let changes = before.compare().changes;
        assert_eq!(changes.len(), 1_500);
        assert!(changes.iter().all(|change| judge(&before.roots[0], change).is_ok()));
        // Each change for itself, it would be minutes.
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    /// fsync(2) refuses the descriptor of a path, rename does not.
    #[test]
    fn what_was_moved_has_its_way_back_though_the_disk_did_not_answer() {
        let tree = Tree::new(2);
        let before = tree.before(&[".vscode/*".to_owned()]);
        let changes = before.compare().changes;
        let all = Journals::open(&tree.at("state")).unwrap();
        let mut journal = all.begin("01AAAAAAAAAAAAAAAAAAAAAAAA", &[before.roots[0].watched.clone()]).unwrap();
        let mut mover = Mover::new();
        mover.store = Some(Store::open(&journal).unwrap());
        let path = tree.at("state/quarantine/01AAAAAAAAAAAAAAAAAAAAAAAA");
        mover.store.as_mut().unwrap().place = sys::open_host(&path).unwrap();
        let restore = mover.take(&before.roots[0], &changes[0], 0, &mut journal).unwrap();
        assert!(restore.contains("/0 ") && std::fs::exists(format!("{path}/0")).unwrap(), "{restore}");
        assert!(mover.finish()[0].starts_with("quarantine: what was moved may be lost"));
        // The twin: with a directory that is open for use.
        let mut mover = Mover::new();
        mover.take(&before.roots[0], &changes[1], 1, &mut journal).unwrap();
        assert_eq!(mover.finish(), Vec::<String>::new());
    }

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
