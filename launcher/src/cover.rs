//! Sockets of the host that a read-only bind would leave connectable.
//!
//! Owns finding them: connect(2) ignores read-only mounts, but a socket seen
//! through an overlay is another object that nobody listens on. A directory that
//! holds a socket at start is therefore shown through an empty overlay; a socket
//! whose directory must stay as it is gets an inert file on top. P0 looks while
//! P1 mounts (a desktop has a thousand sockets), P1 covers (`overlay::cover`).

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::{Attr, Guard, Kind, Plan, Row};
use crate::report::Refusal;
use crate::sockets;

/// What P1 is to cover, as text: rows and messages name paths so.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Covers {
    pub dirs: Vec<String>,
    pub files: Vec<String>,
    /// Watched like guards of the plan. Sockets inside write roots, where nothing
    /// else may be hidden: each gets an inert file, since its server may bind anew.
    pub guards: Vec<Guard>,
}

/// The sockets that are reachable by the plan as it stands.
pub fn find(plan: &Plan, cwd: &str, inside: bool) -> Result<Covers, Refusal> {
    if !plan.cover_sockets {
        return Ok(Covers::default());
    }
    let fail = |e: &io::Error| Refusal::new("proc_denied", "/proc/net/unix").io(e);
    let paths = sockets::read_host(inside).map_err(|e| fail(&e))?;
    if paths.is_empty() {
        return Ok(Covers::default());
    }
    let needed: Vec<PathBuf> = (plan.mounts.iter().map(Row::target))
        .chain(plan.guards.iter().map(|guard| guard.path.as_str()))
        .chain(plan.executable.as_deref())
        .chain([cwd])
        .map(PathBuf::from)
        .collect();
    let cover = sockets::dirs_to_cover(&paths, |path| shown(plan, path) == Shown::ReadOnly, &needed);
    let watched = paths.iter().filter(|path| shown(plan, path) == Shown::Writable && sockets::is_socket(path));
    let mut dirs = cover.dirs.iter().map(|dir| nameable(dir)).collect::<Result<Vec<_>, _>>()?;
    dirs.dedup();
    let files = cover.files.iter().map(|file| text(file)).collect::<Result<_, _>>()?;
    let inert = |path: &PathBuf| Ok(Guard { path: text(path)?, read_only: true, cover: true });
    Ok(Covers { dirs, files, guards: watched.map(inert).collect::<Result<_, Refusal>>()? })
}

#[derive(PartialEq)]
enum Shown {
    ReadOnly,
    Writable,
    /// Private, an overlay (which shows no socket), or granted as a socket.
    No,
}

/// The last row above a path decides how the box sees it.
fn shown(plan: &Plan, path: &Path) -> Shown {
    let covers = |row: &&Row| !matches!(row, Row::Seal { .. } | Row::Dir { .. }) && path.starts_with(row.target());
    match plan.mounts.iter().rev().find(covers) {
        Some(Row::Bind { kind: Kind::Socket, .. }) => Shown::No,
        Some(Row::Bind { attrs, .. }) if attrs.contains(&Attr::Ro) => Shown::ReadOnly,
        Some(Row::Bind { .. }) => Shown::Writable,
        _ => Shown::No,
    }
}

/// A directory whose name is no text is covered with its parent; below `/` alone that cannot be.
fn nameable(dir: &Path) -> Result<String, Refusal> {
    match dir.ancestors().find_map(Path::to_str) {
        Some("/") | None => Err(unnameable(dir)),
        Some(name) => Ok(name.to_string()),
    }
}

fn text(path: &Path) -> Result<String, Refusal> {
    path.to_str().map(str::to_string).ok_or_else(|| unnameable(path))
}

fn unnameable(path: &Path) -> Refusal {
    Refusal::new("mount_denied", format!("cover of {}", path.display())).detail("the name is no UTF-8")
}
