//! Persistence points: what was there before the box, what changed after it.
//!
//! Owns the snapshot and the comparison of the names in `persistence` of the
//! plan (git hooks, editor tasks, agent configuration). It only looks: every
//! component is opened no-follow from the root's descriptor, nothing but
//! directories is opened, and the walk is bounded, because the box owns the tree
//! it looks at. Fails closed: what could not be looked at, or was cut by a bound,
//! is reported as degraded, never as unchanged. Next: persist/walk.rs.

pub mod walk;

use std::io;
use std::os::fd::AsRawFd;

use serde::Serialize;

use crate::plan::Persistence;
use crate::report::show;
use walk::{look_at, lookup, open_root, Entry, Node, Seen, DEPTH, PATTERN_ENTRIES};

/// Stamps are taken from a clock that ticks this coarsely (CONFIG_HZ=100, with room).
const CLOCK_TICK_NS: i128 = 20_000_000;

/// What happened to one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    pub root: String,
    /// Relative to the root, printable; `.` is the root itself.
    pub path: String,
    pub change: ChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Created,
    Changed,
    Removed,
}

/// The answer of `Snapshot::compare`.
#[derive(Debug, Default)]
pub struct Compared {
    pub changes: Vec<Change>,
    pub degraded: Vec<String>,
}

/// The state of every watched root at one time.
pub struct Snapshot {
    roots: Vec<Root>,
}

struct Root {
    path: String,
    names: Node,
    taken_ns: i128,
    identity: (u64, u64),
    seen: Seen,
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
        for root in &self.roots {
            root.compare(&mut result);
        }
        result
    }
}

impl Root {
    fn look(watched: &Persistence) -> io::Result<Self> {
        let names = Node::compile(&watched.names).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let taken_ns = wall_clock_ns();
        let dir = open_root(&watched.root)?;
        let identity = Entry::of(dir.as_raw_fd(), c"")?.identity();
        let seen = look_at(dir.as_raw_fd(), &names);
        Ok(Self { path: watched.root.clone(), names, taken_ns, identity, seen })
    }

    fn compare(&self, result: &mut Compared) {
        let now = open_root(&self.path).and_then(|dir| Ok((Entry::of(dir.as_raw_fd(), c"")?.identity(), dir)));
        let dir = match now {
            Ok((identity, dir)) if identity == self.identity => dir,
            Ok(_) => return self.root_is_lost(result, ChangeKind::Changed),
            Err(_) => return self.root_is_lost(result, ChangeKind::Removed),
        };
        let after = look_at(dir.as_raw_fd(), &self.names);
        for (path, entry) in &after.entries {
            match self.seen.entries.get(path) {
                None if self.is_new(entry) => self.push(result, path, ChangeKind::Created),
                Some(before) if before.differs(entry) => self.push(result, path, ChangeKind::Changed),
                _ => {}
            }
        }
        for path in self.seen.entries.keys().filter(|path| !after.entries.contains_key(*path)) {
            // A cut walk may only have missed it: ask for the name itself.
            if !after.cut || lookup(dir.as_raw_fd(), path).is_none() {
                self.push(result, path, ChangeKind::Removed);
            }
        }
        self.push_degraded(result, &after);
    }

    /// When the first walk was cut, a name it lacks may have been there: an
    /// entry untouched since is old. The change time cannot be set by the box.
    fn is_new(&self, entry: &Entry) -> bool {
        !self.seen.cut || entry.ctime_ns >= self.taken_ns - CLOCK_TICK_NS
    }

    fn root_is_lost(&self, result: &mut Compared, change: ChangeKind) {
        self.push(result, b".", change);
        result
            .degraded
            .push(format!("persistence of {} not compared: the root is another object", show(self.path.as_bytes())));
    }

    fn push(&self, result: &mut Compared, path: &[u8], change: ChangeKind) {
        result.changes.push(Change { root: self.path.clone(), path: show(path), change });
    }

    fn push_degraded(&self, result: &mut Compared, after: &Seen) {
        let root = show(self.path.as_bytes());
        if self.seen.cut || after.cut {
            result.degraded.push(format!("persistence of {root}: more than {PATTERN_ENTRIES} entries or {DEPTH} levels, the rest was not looked at"));
        }
        for path in self.seen.unreadable.iter().chain(&after.unreadable) {
            result.degraded.push(format!("persistence of {root}: {} could not be read", show(path)));
        }
    }
}

fn wall_clock_ns() -> i128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as i128)
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
            snapshot(&[Persistence { root: text(&self.0), names, mode: "report".into() }]).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
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
        let ctime = |s: &Snapshot| s.roots[0].seen.entries[&b".envrc"[..]].ctime_ns;
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
    fn a_root_that_is_another_object_is_reported() {
        let tree = Tree::new();
        fs::create_dir(tree.path("w")).unwrap();
        let names = vec!["a".to_owned()];
        let before = snapshot(&[Persistence { root: text(&tree.path("w")), names, mode: "report".into() }]).unwrap();
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
