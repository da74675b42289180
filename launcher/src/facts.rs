//! What a launch by this plan proves, once it has succeeded.
//!
//! Owns the list of facts. Each belongs to a step that either is carried out or
//! refuses the launch, so the list follows from the plan; a record with it is
//! written only after exec.

use crate::plan::{Backend, Ids, Net, Plan, Row};
use crate::promises::FactSet;

/// Steps that every plan of the `namespaces` backend goes through.
const ALWAYS: [&str; 19] = [
    "userns",
    "mntns",
    "pidns",
    "ipcns",
    "utsns",
    "cgroupns",
    "mounts",
    "guards",
    "init_protected",
    "fds_closed",
    "env_filtered",
    "no_new_privs",
    "keyring",
    "caps_empty",
    "bounding_empty",
    "rlimits",
    "seccomp",
    "terminal_filter",
    "supervised",
];

/// What the plan alone does not tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// An overlay was refused, and its entries were bound one by one.
    pub snapshot: bool,
    /// Without namespaces: a new session keyring was joined; else a filter keeps every keyring away.
    pub keyring: bool,
}

pub fn of(plan: &Plan, seen: Seen) -> FactSet {
    match plan.backend {
        Backend::Namespaces => in_namespaces(plan, seen.snapshot),
        Backend::Landlock => alone(plan, seen.keyring),
    }
}

/// Steps that every plan of the `landlock` backend goes through; its filter is one of two (`alone::check`).
const ALONE: [&str; 15] = [
    "domain",
    "init_protected",
    "fds_closed",
    "env_filtered",
    "no_new_privs",
    "caps_empty",
    "rlimits",
    "seccomp",
    "terminal_filter",
    "supervised",
    "landlock_fs",
    "landlock_signal",
    "landlock_abstract",
    "ipc_refused",
    "unix_refused",
];

fn alone(plan: &Plan, keyring: bool) -> FactSet {
    let mut facts = FactSet::new(false);
    ALONE.into_iter().for_each(|fact| facts.add(fact));
    facts.add(if keyring { "keyring" } else { "keyring_refused" });
    facts.add("persistence_watch");
    if plan.net == Net::None {
        facts.add("net_refused");
    }
    facts
}

fn in_namespaces(plan: &Plan, snapshot: bool) -> FactSet {
    let mut facts = FactSet::new(true);
    ALWAYS.into_iter().for_each(|fact| facts.add(fact));
    let row = |wanted: fn(&Row) -> bool| plan.mounts.iter().any(wanted);
    let landlock = plan.landlock.as_ref();
    let sometimes = [
        ("netns", plan.net == Net::None),
        ("overlay_home", !snapshot && row(|r| matches!(r, Row::Overlay { .. }))),
        ("snapshot_home", snapshot),
        ("proc_fresh", row(|r| matches!(r, Row::Proc { .. }))),
        ("proc_covers", row(|r| matches!(r, Row::Proc { covers, .. } if !covers.is_empty()))),
        ("dev_private", row(|r| matches!(r, Row::Dev { .. }))),
        ("landlock_fs", landlock.is_some()),
        ("landlock_signal", landlock.is_some_and(|l| l.scope_signal)),
        ("landlock_abstract", landlock.is_some_and(|l| l.scope_abstract)),
        ("persistence_watch", true),
        ("sockets_covered", plan.cover_sockets),
        ("ids_shifted", matches!(plan.ids, Ids::Shifted { .. })),
    ];
    sometimes.into_iter().filter(|(_, holds)| *holds).for_each(|(fact, _)| facts.add(fact));
    facts
}

/// Where the home of the box comes from.
pub fn home(plan: &Plan) -> &'static str {
    let first_is_tmpfs = matches!(plan.mounts.first(), Some(Row::Tmpfs { .. }));
    match (first_is_tmpfs, plan.mounts.iter().any(|r| matches!(r, Row::Overlay { .. }))) {
        (true, _) => "tmpfs",
        (false, true) => "overlay",
        (false, false) => "host",
    }
}
