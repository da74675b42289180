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

use crate::plan::{Attr, Kind, Plan, Row};
use crate::report::Refusal;
use crate::sockets;

/// What P1 is to cover, as text: rows and messages name paths so.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Covers {
    pub dirs: Vec<String>,
    pub files: Vec<String>,
}

/// The sockets that are reachable by the plan as it stands.
pub fn find(plan: &Plan, cwd: &str) -> Result<Covers, Refusal> {
    if !plan.cover_sockets {
        return Ok(Covers::default());
    }
    let fail = |e: &io::Error| Refusal::new("proc_denied", "/proc/net/unix").io(e);
    let paths = sockets::read_host().map_err(|e| fail(&e))?;
    if paths.is_empty() {
        return Ok(Covers::default());
    }
    let needed: Vec<PathBuf> = (plan.mounts.iter().map(Row::target))
        .chain(plan.guards.iter().map(|guard| guard.path.as_str()))
        .chain(plan.executable.as_deref())
        .chain([cwd])
        .map(PathBuf::from)
        .collect();
    let cover = sockets::dirs_to_cover(&paths, |path| visible(plan, path), &needed);
    let mut dirs: Vec<String> = cover.dirs.iter().filter_map(|dir| nameable(dir)).map(str::to_string).collect();
    dirs.dedup();
    let files = cover.files.iter().map(|file| file.to_str().map(str::to_string).ok_or_else(|| unnameable(file)));
    Ok(Covers { dirs, files: files.collect::<Result<_, Refusal>>()? })
}

/// The row that shows a path in the box decides: only a read-only bind that is
/// not itself the granted socket shows the host's sockets by accident.
fn visible(plan: &Plan, path: &Path) -> bool {
    let shows = |row: &&Row| !matches!(row, Row::Seal { .. } | Row::Dir { .. }) && path.starts_with(row.target());
    match plan.mounts.iter().rev().find(shows) {
        Some(Row::Bind { attrs, kind, .. }) => attrs.contains(&Attr::Ro) && *kind != Kind::Socket,
        _ => false,
    }
}

/// A directory whose name is no text is covered with its parent.
fn nameable(dir: &Path) -> Option<&str> {
    dir.ancestors().find_map(Path::to_str).filter(|dir| *dir != "/")
}

fn unnameable(file: &Path) -> Refusal {
    Refusal::new("mount_denied", format!("cover of {}", file.display())).detail("the name is no UTF-8")
}
