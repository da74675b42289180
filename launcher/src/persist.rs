//! Persistence points: what was there before the box, what changed after it.
//!
//! Owns the snapshot and the comparison of the names in `persistence` of the
//! plan (git hooks, editor tasks, agent configuration). It only looks: every
//! component is opened no-follow from the root's descriptor, nothing but
//! directories is opened, and the walk is bounded, because the box owns the tree
//! it looks at. Fails closed: what could not be looked at, or was cut by a bound,
//! is reported as degraded, never as unchanged. Next: persist/walk.rs.

pub mod asked;
pub mod distant;
pub mod index;
pub mod journal;
pub mod journals;
pub mod manifest;
pub mod quarantine;
mod source;
mod stored;
pub mod walk;

use std::io;
use std::os::fd::AsRawFd;

use serde::Serialize;

use crate::report::show;
use crate::ulid;
use asked::{OnPersistence, Persistence};
use walk::{is_short, look_at, lookup, open_root, Entry, Node, Seen, DEPTH, PATTERN_ENTRIES};

/// Stamps are taken from a clock that ticks this coarsely (CONFIG_HZ=100, with room).
const CLOCK_TICK_NS: i128 = 20_000_000;

/// What happened to one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    pub root: String,
    /// Relative to the root, printable; `.` is the root itself.
    pub path: String,
    pub change: ChangeKind,
    /// The shell line that puts back what was moved into quarantine.
    pub restore: Option<String>,
    /// Why it was left where it is, where quarantine was asked for.
    pub left: Option<quarantine::Left>,
    #[serde(skip)]
    pub found: Found,
}

/// What the record does not say: where and what exactly it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Which root of the snapshot.
    pub root: usize,
    pub path: Vec<u8>,
    pub entry: Option<Entry>,
    /// It lies below a `.git` that was not there, or was another one.
    pub new_repository: bool,
    /// The list has this very name, not a pattern for it: a box cannot make many of them.
    pub spelled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Created,
    Changed,
    Removed,
}

impl ChangeKind {
    fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Removed => "removed",
        }
    }
}

/// The answer of `Snapshot::compare`.
#[derive(Debug, Default)]
pub struct Compared {
    pub changes: Vec<Change>,
    pub degraded: Vec<String>,
    /// The first root whose plan says that any change fails the run and that has one, or
    /// could not be compared, in one line.
    pub failed: Option<String>,
    /// A root could not be looked at for want of descriptors or memory: a later look will tell.
    pub unseen: bool,
}

/// The state of every watched root at one time.
pub struct Snapshot {
    pub roots: Vec<Root>,
}

pub struct Root {
    pub watched: Persistence,
    names: Node,
    /// Those of them that are moved when they are new.
    pub movable: Option<Node>,
    pub state: State,
}

/// What was there, as it is kept in memory and in the journal.
pub struct State {
    pub taken_ns: i128,
    pub identity: (u64, u64),
    pub seen: Seen,
    /// Names for quarantine that git tracked; None: it cannot be told, or nobody asked.
    pub tracked: Option<Vec<Vec<u8>>>,
}

/// Looks at every watched name. A root that is not there is an error: the plan
/// names write roots, and they were mounted.
pub fn snapshot(watched: &[Persistence]) -> io::Result<Snapshot> {
    let roots: io::Result<Vec<Root>> = watched.iter().map(Root::look).collect();
    Ok(Snapshot { roots: roots? })
}

impl Snapshot {
    /// Looks again, after the last process of the box is dead.
    pub fn compare(&self) -> Compared {
        let mut result = Compared::default();
        for (number, root) in self.roots.iter().enumerate() {
            let before = (result.changes.len(), result.degraded.len());
            root.compare(number, &mut result);
            if root.watched.mode == OnPersistence::Fail && result.failed.is_none() {
                let (changes, degraded) = (&result.changes[before.0..], &result.degraded[before.1..]);
                result.failed = root.failure(changes, degraded);
            }
        }
        result
    }
}

fn compile(names: &[String]) -> io::Result<Node> {
    Node::compile(names).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn movable(watched: &Persistence) -> io::Result<Option<Node>> {
    watched.quarantine.as_ref().map(|asked| compile(&asked.names)).transpose()
}

impl Root {
    fn look(watched: &Persistence) -> io::Result<Self> {
        let names = compile(&watched.names)?;
        let taken_ns = ulid::since_epoch().as_nanos() as i128;
        let dir = open_root(&watched.root)?;
        let identity = Entry::of(dir.as_raw_fd(), c"")?.identity();
        let seen = look_at(dir.as_raw_fd(), &names);
        let movable = movable(watched)?;
        let asked = watched.quarantine.as_ref().zip(movable.as_ref());
        let tracked = asked.and_then(|(asked, names)| index::tracked(&asked.index, &asked.prefix, names));
        Ok(Self { watched: watched.clone(), names, movable, state: State { taken_ns, identity, seen, tracked } })
    }

    /// The same root again, from what a journal holds.
    pub fn remembered(watched: Persistence, state: State) -> io::Result<Self> {
        Ok(Self { names: compile(&watched.names)?, movable: movable(&watched)?, watched, state })
    }

    fn compare(&self, number: usize, result: &mut Compared) {
        let now = open_root(&self.watched.root).and_then(|dir| Ok((Entry::of(dir.as_raw_fd(), c"")?.identity(), dir)));
        let dir = match now {
            Ok((identity, dir)) if identity == self.state.identity => dir,
            Ok(_) => return self.root_is_lost(number, result, ChangeKind::Changed),
            Err(e) if is_short(&e) => return self.unseen(result, &e),
            Err(_) => return self.root_is_lost(number, result, ChangeKind::Removed),
        };
        let after = look_at(dir.as_raw_fd(), &self.names);
        let before = &self.state.seen;
        for (path, entry) in &after.entries {
            let kind = match before.entries.get(path) {
                None if self.is_new(entry) => ChangeKind::Created,
                Some(old) if old.differs(entry) => ChangeKind::Changed,
                _ => continue,
            };
            let new_repository = self.in_new_repository(path, &after);
            self.push(
                result,
                kind,
                Found { root: number, path: path.clone(), entry: Some(*entry), new_repository, spelled: false },
            );
        }
        for path in before.entries.keys().filter(|path| !after.entries.contains_key(*path)) {
            // A cut walk may only have missed it: ask for the name itself.
            if !after.cut || lookup(dir.as_raw_fd(), path).is_none() {
                self.push(result, ChangeKind::Removed, Found { root: number, path: path.clone(), ..Found::default() });
            }
        }
        self.push_degraded(result, &after);
    }

    /// When the first walk was cut, a name it lacks may have been there: an
    /// entry untouched since is old. The change time cannot be set by the box.
    fn is_new(&self, entry: &Entry) -> bool {
        !self.state.seen.cut || entry.ctime_ns >= self.state.taken_ns - CLOCK_TICK_NS
    }

    fn in_new_repository(&self, path: &[u8], after: &Seen) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.map(|at| &path[..at]).filter(|above| *above == b".git" || above.ends_with(b"/.git")).any(|above| {
            let then = self.state.seen.repositories.get(above);
            then.is_none() || then != after.repositories.get(above)
        })
    }

    fn root_is_lost(&self, number: usize, result: &mut Compared, change: ChangeKind) {
        self.push(result, change, Found { root: number, path: b".".to_vec(), ..Found::default() });
        let root = show(self.watched.root.as_bytes());
        result.degraded.push(format!("persistence of {root} not compared: the root is another object"));
    }

    /// Nobody looked: that says nothing of the root.
    fn unseen(&self, result: &mut Compared, error: &io::Error) {
        result.unseen = true;
        result.degraded.push(format!("persistence of {} not compared: {error}", show(self.watched.root.as_bytes())));
    }

    fn failure(&self, changes: &[Change], degraded: &[String]) -> Option<String> {
        const WANTED: &str = "expected no change in places that run code later";
        let first = match (changes, degraded) {
            ([], []) => return None,
            ([first, ..], _) => {
                format!("{}: got {} {}", show(self.watched.root.as_bytes()), first.path, first.change.word())
            }
            ([], [first, ..]) => first.clone() + ": got no comparison",
        };
        match changes.len().max(1) - 1 {
            0 => Some(format!("{first}, {WANTED}")),
            more => Some(format!("{first} and {more} more, {WANTED}")),
        }
    }

    fn push(&self, result: &mut Compared, change: ChangeKind, found: Found) {
        let (root, path) = (self.watched.root.clone(), show(&found.path));
        let found = Found { spelled: found.path == b"." || self.names.spells(&found.path), ..found };
        result.changes.push(Change { root, path, change, restore: None, left: None, found });
    }

    fn push_degraded(&self, result: &mut Compared, after: &Seen) {
        let root = show(self.watched.root.as_bytes());
        let before = &self.state.seen;
        if before.cut || after.cut {
            result.degraded.push(format!("persistence of {root}: more than {PATTERN_ENTRIES} entries or {DEPTH} levels, or too many names to keep: the rest was not looked at"));
        }
        for path in before.unreadable.iter().chain(&after.unreadable) {
            result.degraded.push(format!("persistence of {root}: {} could not be read", show(path)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    struct Tree(PathBuf);

    impl Tree {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("persist-{}", crate::ulid::ulid().unwrap()));
            fs::create_dir(&path).unwrap();
            Self(path.canonicalize().unwrap())
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            fs::write(self.path(name), text).unwrap();
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn watch(&self, names: &[&str]) -> Snapshot {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            snapshot(&[watched(&self.0, names)]).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn watched(root: &Path, names: Vec<String>) -> Persistence {
        Persistence { root: text(root), names, mode: OnPersistence::Report, quarantine: None }
    }

    fn text(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    fn changes(snapshot: &Snapshot) -> Vec<(String, ChangeKind)> {
        let result = snapshot.compare();
        assert_eq!(result.degraded, Vec::<String>::new());
        result.changes.into_iter().map(|c| (c.path, c.change)).collect()
    }

    use ChangeKind::{Changed, Created, Removed};

    #[test]
    fn an_untouched_tree_has_no_changes_and_other_names_do_not_count() {
        let tree = Tree::new();
        tree.write(".git/hooks/pre-commit", "a");
        tree.write("src/main.c", "a");
        let before = tree.watch(&[".git/hooks/*", ".envrc", ".git/config"]);
        tree.write("src/main.c", "b");
        tree.write(".git/index", "b");
        assert_eq!(changes(&before), []);
    }

    #[test]
    fn a_pattern_for_repositories_in_the_tree_does_not_make_every_file_a_finding() {
        let tree = Tree::new();
        let before = tree.watch(&["*/.git", ".vscode/*"]);
        tree.write("main.c", "a");
        symlink("main.c", tree.path("link")).unwrap();
        fs::create_dir_all(tree.path("inner/.git")).unwrap();
        symlink("elsewhere", tree.path(".vscode")).unwrap();
        assert_eq!(changes(&before), [(".vscode".to_owned(), Created), ("inner/.git".to_owned(), Created)]);
    }

    #[test]
    fn created_changed_and_removed_names_are_reported() {
        let tree = Tree::new();
        tree.write(".git/hooks/old", "a");
        tree.write(".git/hooks/kept", "a");
        tree.write(".git/config", "a");
        let before = tree.watch(&[".git/hooks/*", ".envrc", ".git/config", ".vscode/**", ".git/worktrees/*/config*"]);
        fs::remove_file(tree.path(".git/hooks/old")).unwrap();
        tree.write(".git/hooks/.new", "a");
        tree.write(".git/config", "ab");
        tree.write(".vscode/a/tasks.json", "a");
        tree.write(".git/worktrees/w/config.worktree", "a");
        tree.write(".git/worktrees/w/HEAD", "a");
        let expected = [
            (".git/config", Changed),
            (".git/hooks/.new", Created),
            (".git/worktrees/w/config.worktree", Created),
            (".vscode/a", Created),
            (".vscode/a/tasks.json", Created),
            (".git/hooks/old", Removed),
        ];
        assert_eq!(changes(&before), expected.map(|(path, change)| (path.to_owned(), change)));
    }

    #[test]
    fn a_rewrite_of_equal_size_with_its_time_set_back_is_seen() {
        let tree = Tree::new();
        tree.write(".envrc", "aaaa");
        let time = fs::metadata(tree.path(".envrc")).unwrap().modified().unwrap();
        let before = tree.watch(&[".envrc"]);
        // The change time ticks with the kernel's clock; wait for another tick.
        let ctime = |s: &Snapshot| s.roots[0].state.seen.entries[&b".envrc"[..]].ctime_ns;
        let start = Instant::now();
        while ctime(&tree.watch(&[".envrc"])) == ctime(&before) && start.elapsed().as_secs() < 5 {
            tree.write(".envrc", "bbbb");
        }
        fs::File::options().write(true).open(tree.path(".envrc")).unwrap().set_modified(time).unwrap();
        assert_eq!(changes(&before), [(".envrc".to_owned(), Changed)]);
    }

    #[test]
    fn a_directory_swapped_for_a_copy_or_a_link_is_seen_and_the_link_is_not_followed() {
        let tree = Tree::new();
        tree.write(".git/hooks/pre-commit", "a");
        tree.write("other/hooks/evil", "a");
        let before = tree.watch(&[".git/hooks/*"]);
        fs::rename(tree.path(".git"), tree.path("x")).unwrap();
        tree.write(".git/hooks/pre-commit", "a");
        assert_eq!(changes(&before), [(".git/hooks/pre-commit".to_owned(), Changed)]);
        fs::remove_dir_all(tree.path(".git")).unwrap();
        symlink("other", tree.path(".git")).unwrap();
        let expected = [(".git".to_owned(), Created), (".git/hooks/pre-commit".to_owned(), Removed)];
        assert_eq!(changes(&before), expected);
    }

    #[test]
    fn junk_cannot_use_up_the_bounds_of_a_name_that_is_spelled_out() {
        let tree = Tree::new();
        tree.write("d/first", "a");
        let before = tree.watch(&["d/**", "z/hook", "d/zzz"]);
        (0..PATTERN_ENTRIES + 10).for_each(|n| tree.write(&format!("d/junk{n}"), ""));
        tree.write("z/hook", "a");
        tree.write("d/zzz", "a");
        let result = before.compare();
        assert!(result.degraded[0].contains("not looked at"), "{:?}", result.degraded);
        let found = |path: &str| result.changes.iter().any(|c| c.path == path && c.change == Created);
        assert!(found("z/hook") && found("d/zzz"));
        assert!(!result.changes.iter().any(|c| c.change == Removed));
    }

    #[test]
    fn a_tree_too_large_to_snapshot_does_not_make_old_names_new() {
        let tree = Tree::new();
        (0..PATTERN_ENTRIES + 500).for_each(|n| tree.write(&format!("d/old{n}"), ""));
        std::thread::sleep(std::time::Duration::from_nanos(2 * CLOCK_TICK_NS as u64));
        let before = tree.watch(&["d/*"]);
        (0..1000).for_each(|n| fs::remove_file(tree.path(&format!("d/old{n}"))).unwrap());
        tree.write("d/new", "");
        let result = before.compare();
        assert_eq!(result.degraded.len(), 1);
        let created: Vec<&str> =
            result.changes.iter().filter(|c| c.change == Created).map(|c| c.path.as_str()).collect();
        assert_eq!(created, ["d/new"]);
        assert!(result.changes.iter().filter(|c| c.change == Removed).count() <= 1000);
    }

    #[test]
    fn recursion_ends_at_its_depth_and_says_so() {
        let tree = Tree::new();
        let before = tree.watch(&["d/**"]);
        fs::create_dir_all(tree.path("d/1/2/3/4/5/6/7/8")).unwrap();
        assert_eq!(changes(&before).len(), 8);
        tree.write("d/1/2/3/4/5/6/7/8/9", "a");
        let result = before.compare();
        assert_eq!((result.changes.len(), result.degraded.len()), (8, 1));
    }

    #[test]
    fn a_failure_names_its_root_the_first_path_and_how_many_more() {
        let tree = Tree::new();
        let names = vec!["a".to_owned(), "b".to_owned()];
        let failing = Persistence { mode: OnPersistence::Fail, ..watched(&tree.0, names) };
        let before = snapshot(&[failing]).unwrap();
        assert_eq!(before.compare().failed, None);
        tree.write("a", "x");
        tree.write("b", "x");
        let wanted = "got a created and 1 more, expected no change in places that run code later";
        assert_eq!(before.compare().failed, Some(format!("{}: {wanted}", text(&tree.0))));
    }

    #[test]
    fn a_root_that_is_another_object_is_reported() {
        let tree = Tree::new();
        fs::create_dir(tree.path("w")).unwrap();
        let names = vec!["a".to_owned()];
        let before = snapshot(&[watched(&tree.path("w"), names)]).unwrap();
        fs::rename(tree.path("w"), tree.path("old")).unwrap();
        assert_eq!(before.compare().changes[0].change, Removed);
        fs::create_dir(tree.path("w")).unwrap();
        let result = before.compare();
        assert_eq!(
            (result.changes[0].path.as_str(), result.changes[0].change, result.degraded.len()),
            (".", Changed, 1)
        );
    }

    #[test]
    fn patterns_without_meaning_are_refused() {
        let one = |name: &str| Node::compile(&[name.to_string()]);
        for name in ["", "/a", "a/", "a//b", "../a", "a/./b", "a/**/b", "a**", "a/b**", "a\0"] {
            assert!(one(name).is_err(), "{name:?}");
        }
        for name in ["a", "a/*", "a/**", "**", "*", ".git/worktrees/*/config", "a/.b*c/d"] {
            assert!(one(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn spelled_out_is_a_name_of_the_list_and_no_other() {
        let names = [".envrc", ".git/hooks/*", "a/b", "c/**"].map(str::to_owned);
        let node = Node::compile(&names).unwrap();
        let spelled: Vec<&str> =
            [".envrc", ".git", ".git/hooks/*", ".git/hooks/x", "a", "a/b", "a/b/c", "c", "c/d", ""]
                .into_iter()
                .filter(|path| node.spells(path.as_bytes()))
                .collect();
        assert_eq!(spelled, [".envrc", "a/b"]);
    }

    #[test]
    fn sixty_names_of_which_few_exist_are_cheap() {
        let tree = Tree::new();
        (0..14).for_each(|n| tree.write(&format!(".git/hooks/h{n}"), ""));
        tree.write(".git/config", "");
        let names: Vec<String> = (0..56).map(|n| format!(".tool{n}/settings.json")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.extend([".git/hooks/*", ".git/config", ".git/modules/*/config", ".git/worktrees/*/config.worktree"]);
        let best = (0..20)
            .map(|_| {
                let start = Instant::now();
                tree.watch(&names);
                start.elapsed()
            })
            .min()
            .unwrap();
        eprintln!("60 names: {best:?}");
        assert!(best.as_millis() < 20, "{best:?}");
    }
}
