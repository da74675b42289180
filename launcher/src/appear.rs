//! Names that a stored plan protects although they did not exist when it was made.
//!
//! A launch line may be started months after it was compiled: the tree has an
//! `.env` or a `.vscode` by then. Owns looking for such names at the top of each
//! root, while P1 mounts; what is found becomes a guard like those of the plan
//! (`guards.rs`). Fails closed: a directory that cannot be looked at to the end
//! refuses the launch. Next: persist/walk.rs.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use serde::Deserialize;

use crate::glob::{matches, Case};
use crate::persist::walk::{list_dir, look_in, open_root, Node};
use crate::plan::{Guard, Plan, Row};
use crate::report::Refusal;
use crate::sys;

/// One root and the names that count in it. Patterns as in `persistence`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Appearing {
    pub root: String,
    /// Read-only, with every directory on the way pinned.
    pub guard: Vec<String>,
    /// Unreadable; names at the top alone, in letters of either case.
    pub mask: Vec<Mask>,
    /// Names at the top that the caller granted: not masked.
    pub shown: Vec<String>,
}

impl Appearing {
    fn hides(&self, name: &[u8]) -> bool {
        self.mask.iter().any(|mask| mask.hides(name)) && !self.shown.iter().any(|shown| shown.as_bytes() == name)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mask {
    pub pattern: String,
    pub except: Vec<String>,
}

impl Mask {
    fn hides(&self, name: &[u8]) -> bool {
        let fits = |pattern: &String| matches(pattern.as_bytes(), name, Case::Fold);
        fits(&self.pattern) && !self.except.iter().any(fits)
    }
}

/// What of it is there now and no part of the plan yet, parents first.
pub fn find(plan: &Plan) -> Result<Vec<Guard>, Refusal> {
    let mut found = vec![];
    for wanted in &plan.appearing {
        look(wanted, plan, &mut found).map_err(|e| Refusal::new("guard_denied", wanted.root.as_str()).io(&e))?;
    }
    found.sort_by(|a, b| (depth(a), &a.path).cmp(&(depth(b), &b.path)));
    found.dedup_by(|later, kept| later.path == kept.path);
    Ok(found)
}

fn depth(guard: &Guard) -> usize {
    guard.path.matches('/').count()
}

fn look(wanted: &Appearing, plan: &Plan, found: &mut Vec<Guard>) -> io::Result<()> {
    let dir = open_root(&wanted.root)?;
    let names = Node::compile(&wanted.guard).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let (top, _) = list_dir(dir.as_raw_fd(), usize::MAX)?;
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    for name in top {
        if wanted.hides(&name) {
            add(plan, found, &wanted.root, &text(&name)?, true);
            if let Some(end) = end_of_link(dir.as_raw_fd(), &text(&name)?, &wanted.root) {
                add(plan, found, &wanted.root, &end, true);
            }
        }
        for path in points(dir.as_raw_fd(), &name, &names)? {
            add(plan, found, &wanted.root, &text(&path)?, false);
        }
    }
    Ok(())
}

/// Where a symbolic link leads, when that lies in the root, too: the file has two names.
fn end_of_link(dir: RawFd, name: &str, root: &str) -> Option<String> {
    let file = sys::openat2(dir, name, libc::O_PATH, sys::RESOLVE_NO_MAGICLINKS).ok()?;
    let here = sys::cstr(&format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let end = String::from_utf8(sys::link_target(libc::AT_FDCWD, &here).ok()?).ok()?;
    let inner = end.strip_prefix(root)?.strip_prefix('/')?;
    (inner != name).then(|| inner.to_string())
}

/// The points at or below one name of the top; the walk is bounded, and one that was cut is an error.
fn points(dir: RawFd, name: &[u8], names: &Node) -> io::Result<Vec<Vec<u8>>> {
    let mut found = vec![];
    for node in names.of(name) {
        let seen = look_in(dir, name, node);
        if seen.cut || !seen.unreadable.is_empty() {
            return Err(io::Error::from_raw_os_error(if seen.cut { libc::E2BIG } else { libc::EACCES }));
        }
        found.extend(seen.entries.into_keys());
    }
    Ok(found)
}

/// Adds a guard and pins its parents, unless the plan has it, or mounts something in it.
fn add(plan: &Plan, found: &mut Vec<Guard>, root: &str, name: &str, cover: bool) {
    let path = format!("{root}/{name}");
    let below = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    let locked = |guard: &&Guard| guard.read_only && (guard.path == path || below(&path, &guard.path));
    let placed = |target: &str| target == path || below(target, &path);
    if plan.guards.iter().chain(&*found).any(|guard| locked(&guard)) || plan.mounts.iter().map(Row::target).any(placed)
    {
        return;
    }
    let parents = name.match_indices('/').map(|(at, _)| format!("{root}/{}", &name[..at]));
    let missing = parents.filter(|parent| !plan.guards.iter().any(|guard| guard.path == *parent));
    let pins: Vec<Guard> = missing.map(|path| Guard { path, read_only: false, cover: false }).collect();
    found.extend(pins);
    found.push(Guard { path, read_only: true, cover });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_knows_both_cases_and_its_exceptions() {
        let mask = Mask { pattern: ".env.*".into(), except: vec!["*.example".into()] };
        assert!(mask.hides(b".env.local") && mask.hides(b".ENV.Prod"));
        assert!(!mask.hides(b".env") && !mask.hides(b".env.example") && !mask.hides(b".env.EXAMPLE"));
    }
}
