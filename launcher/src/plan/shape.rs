//! What a plan of namespaces must have, whatever it shows.
//!
//! Owns the checks of its mount rows and namespaces. Fails closed: what does not fit is
//! `plan_invalid` before anything is made. Read next: plan.rs, steps/mounts.rs.

use super::{canonical, invalid, Namespace, Net, Plan, Row};
use crate::report::Refusal;

pub fn check_rows(rows: &[Row]) -> Result<(), Refusal> {
    let first = rows.first().map(|r| (r.target(), matches!(r, Row::Bind { .. } | Row::Tmpfs { .. })));
    if first != Some(("/", true)) {
        return Err(invalid("mounts", "the first row must give `/`"));
    }
    if !rows.iter().any(|r| matches!(r, Row::Tmpfs { target, .. } if target == "/run")) {
        return Err(invalid("mounts", "no tmpfs at /run for the box record"));
    }
    rows.iter().try_for_each(check_names)
}

/// Hidden and created names are relative and stay below their base.
fn check_names(row: &Row) -> Result<(), Refusal> {
    let names: Vec<&String> = match row {
        Row::Overlay { hide, dirs, .. } => hide.iter().chain(dirs).collect(),
        Row::Proc { covers, .. } => covers.iter().collect(),
        _ => return Ok(()),
    };
    for name in names {
        canonical(&format!("/{name}"))?;
    }
    Ok(())
}

pub fn check_namespaces(plan: &Plan) -> Result<(), Refusal> {
    let has = |n| plan.namespaces.contains(&n);
    let base = [Namespace::User, Namespace::Mount, Namespace::Pid, Namespace::Ipc, Namespace::Uts, Namespace::Cgroup];
    if !base.into_iter().all(has) || has(Namespace::Net) != (plan.net == Net::None) {
        return Err(invalid("namespaces", "does not agree with the backend and net"));
    }
    Ok(())
}
