//! Sockets of the host that a read-only bind would leave connectable.
//!
//! Owns the extra rows: connect(2) ignores read-only mounts, but a socket seen
//! through an overlay is another object that nobody listens on. A directory that
//! holds a socket at start is therefore shown through an empty overlay; a socket
//! whose directory must stay as it is gets an inert file on top.

use std::io;
use std::path::Path;

use crate::plan::{depth, Attr, Kind, Plan, Row};
use crate::report::Refusal;
use crate::sockets;

/// Adds rows for the sockets that are reachable by the plan as it stands.
pub fn add_rows(plan: &mut Plan) -> Result<(), Refusal> {
    if !plan.cover_sockets {
        return Ok(());
    }
    let fail = |e: &io::Error| Refusal::new("proc_denied", "/proc/net/unix").io(e);
    let paths = sockets::read_host().map_err(|e| fail(&e))?;
    if paths.is_empty() {
        return Ok(());
    }
    let needed: Vec<_> = plan.mounts.iter().map(|row| row.target().into()).collect();
    let cover = sockets::dirs_to_cover(&paths, |path| visible(plan, path), &needed);
    let dirs = cover.dirs.iter().filter_map(|dir| overlay(dir.to_str()?));
    let files = cover.files.iter().filter_map(|file| inert(file.to_str()?));
    let rows: Vec<Row> = dirs.chain(files).collect();
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

fn overlay(dir: &str) -> Option<Row> {
    let here = dir.to_string();
    Some(Row::Overlay { source: here.clone(), target: here, hide: vec![], dirs: vec![], idmap: false, create: false })
}

fn inert(file: &str) -> Option<Row> {
    Some(Row::Bind {
        source: "/dev/null".to_string(),
        target: file.to_string(),
        attrs: vec![Attr::Ro],
        kind: Kind::File,
        recursive: false,
        optional: false,
        idmap: false,
        create: false,
    })
}
