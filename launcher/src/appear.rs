//! Names that a stored plan protects although they did not exist when it was made.
//!
//! A launch line may be started months after it was compiled: the tree has an
//! `.env` or a `.vscode` by then. Owns looking for such names at the top of each
//! root, while P1 mounts; what is found becomes a guard like those of the plan
//! (`guards.rs`). Fails closed: a directory that cannot be looked at to the end
//! refuses the launch. Next: persist/walk.rs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use serde::Deserialize;

use crate::glob::{matches, Case};
use crate::persist::walk::{list_dir, look_in, open_root, Node, PATTERN_ENTRIES};
use crate::plan::{Guard, Plan};
use crate::report::{show, Refusal};
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
    let mut guards = BTreeMap::new();
    for wanted in &plan.appearing {
        let dir = open_root(&wanted.root).map_err(|e| denied(&wanted.root, &e))?;
        let mut root = Root { plan, wanted, dir: dir.as_raw_fd(), guards: &mut guards };
        root.look()?;
    }
    let mut found: Vec<Guard> = guards.into_values().collect();
    found.sort_by_key(|guard| guard.path.matches('/').count());
    Ok(found)
}

fn denied(path: &str, e: &io::Error) -> Refusal {
    Refusal::new("guard_denied", path).io(e)
}

#[derive(Clone, Copy, PartialEq)]
enum As {
    Guard,
    Mask,
}

/// One root while it is looked at.
struct Root<'a> {
    plan: &'a Plan,
    wanted: &'a Appearing,
    dir: RawFd,
    guards: &'a mut BTreeMap<String, Guard>,
}

impl Root<'_> {
    fn look(&mut self) -> Result<(), Refusal> {
        let bad = |e: String| Refusal::new("plan_invalid", "appearing").detail(e);
        let names = Node::compile(&self.wanted.guard).map_err(bad)?;
        let (top, _) = list_dir(self.dir, usize::MAX).map_err(|e| denied(&self.wanted.root, &e))?;
        for name in top {
            if self.wanted.hides(&name) {
                self.take(&name, As::Mask)?;
            }
            for path in self.points(&name, &names)? {
                self.take(&path, As::Guard)?;
            }
        }
        Ok(())
    }

    /// The points at or below one name of the top. The walk is bounded; one that was cut refuses.
    fn points(&self, name: &[u8], names: &Node) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut found = vec![];
        for node in names.of(name) {
            let seen = look_in(self.dir, name, node);
            if let Some(path) = seen.unreadable.first() {
                let said = "it cannot be looked into, so what is in it cannot be guarded";
                return Err(Refusal::new("guard_denied", self.shown(path)).errno(libc::EACCES).detail(said));
            }
            if seen.cut {
                let said = format!("more than {PATTERN_ENTRIES} entries, so not all of it can be guarded");
                return Err(Refusal::new("guard_denied", self.shown(name)).errno(libc::E2BIG).detail(said));
            }
            found.extend(seen.entries.into_keys());
        }
        Ok(found)
    }

    fn shown(&self, name: &[u8]) -> String {
        format!("{}/{}", self.wanted.root, show(name))
    }

    /// Protects a name and, where it is a link, what the link leads to: a file that has two names here.
    fn take(&mut self, name: &[u8], how: As) -> Result<(), Refusal> {
        let Ok(text) = std::str::from_utf8(name) else {
            let said = "its name is not UTF-8, so no plan can name it";
            return Err(Refusal::new("guard_denied", self.shown(name)).errno(libc::EILSEQ).detail(said));
        };
        self.add(text, how);
        if let Some(end) = self.end_of_link(text) {
            self.add(&end, how);
        }
        Ok(())
    }

    /// Where a name really leads, when that is another place of this root.
    fn end_of_link(&self, name: &str) -> Option<String> {
        let file = sys::openat2(self.dir, name, libc::O_PATH, sys::RESOLVE_NO_MAGICLINKS).ok()?;
        let here = sys::cstr(&format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let end = String::from_utf8(sys::link_target(libc::AT_FDCWD, &here).ok()?).ok()?;
        let inner = end.strip_prefix(&self.wanted.root)?.strip_prefix('/')?;
        (inner != name).then(|| inner.to_string())
    }

    /// Adds a guard and pins its parents, unless the plan has it, or mounts something in it.
    fn add(&mut self, name: &str, how: As) {
        let path = format!("{}/{name}", self.wanted.root);
        if self.is_planned(&path, how) {
            return;
        }
        for (at, _) in name.match_indices('/') {
            let parent = format!("{}/{}", self.wanted.root, &name[..at]);
            if !self.plan.guards.iter().any(|guard| guard.path == parent) {
                self.guards.entry(parent).or_insert_with_key(|path| pin(path));
            }
        }
        let guard = self.guards.entry(path).or_insert_with_key(|path| pin(path));
        guard.read_only = true;
        guard.cover |= how == As::Mask;
    }

    /// A read-only guard above does for a point; what must not be read needs its own cover.
    fn is_planned(&self, path: &str, how: As) -> bool {
        let at_or_below = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut guards = self.plan.guards.iter().filter(|guard| guard.read_only);
        let locked = how == As::Guard && guards.any(|guard| at_or_below(path, &guard.path));
        locked || self.plan.mounts.iter().any(|row| at_or_below(row.target(), path))
    }
}

fn pin(path: &str) -> Guard {
    Guard { path: path.to_string(), read_only: false, cover: false }
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
