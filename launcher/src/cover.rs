//! Sockets of the host that a read-only bind would leave connectable.
//!
//! Owns the extra rows: connect(2) ignores read-only mounts, but a socket seen
//! through an overlay is another object that nobody listens on. A directory that
//! holds a socket at start is therefore shown through an empty overlay; a socket
//! whose directory must stay as it is gets an inert file on top.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::plan::{depth, Attr, Kind, Plan, Row};
use crate::report::Refusal;
use crate::sockets;

/// Adds rows for the sockets that are reachable by the plan as it stands.
pub fn add_rows(plan: &mut Plan, cwd: &str) -> Result<(), Refusal> {
    if !plan.cover_sockets {
        return Ok(());
    }
    let fail = |e: &io::Error| Refusal::new("proc_denied", "/proc/net/unix").io(e);
    let paths = sockets::read_host().map_err(|e| fail(&e))?;
    if paths.is_empty() {
        return Ok(());
    }
    let needed: Vec<PathBuf> = (plan.mounts.iter().map(Row::target))
        .chain(plan.guards.iter().map(|guard| guard.path.as_str()))
        .chain(plan.executable.as_deref())
        .chain([cwd])
        .map(PathBuf::from)
        .collect();
    let cover = sockets::dirs_to_cover(&paths, |path| visible(plan, path), &needed);
    let dirs: BTreeSet<&str> = cover.dirs.iter().filter_map(|dir| nameable(dir)).collect();
    let files = cover.files.iter().map(|file| file.to_str().ok_or_else(|| unnameable(file)));
    let rows = dirs.into_iter().map(|dir| Ok(overlay(dir))).chain(files.map(|file| file.map(inert)));
    let rows: Vec<Row> = rows.collect::<Result<_, Refusal>>()?;
    plan.mounts.extend(rows);
    plan.mounts.sort_by_key(|row| (matches!(row, Row::Seal { .. }), depth(row.target())));
    Ok(())
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

/// Rows name paths as text; a directory whose name is none is covered with the parent.
fn nameable(dir: &Path) -> Option<&str> {
    dir.ancestors().find_map(Path::to_str).filter(|dir| *dir != "/")
}

fn unnameable(file: &Path) -> Refusal {
    Refusal::new("mount_denied", format!("cover of {}", file.display())).detail("the name is no UTF-8")
}

fn overlay(dir: &str) -> Row {
    let here = dir.to_string();
    Row::Overlay {
        source: here.clone(),
        target: here,
        hide: vec![],
        dirs: vec![],
        idmap: false,
        create: false,
        owner: None,
    }
}

fn inert(file: &str) -> Row {
    Row::Bind {
        source: "/dev/null".to_string(),
        target: file.to_string(),
        attrs: vec![Attr::Ro],
        kind: Kind::File,
        recursive: false,
        optional: false,
        idmap: false,
        create: false,
        owner: None,
    }
}
