//! Step 12: resource limits.
//!
//! Owns setrlimit(2) for the command and what the receipt says about each limit:
//! its mechanism and whether it is exact. A limit that cannot be set refuses.

use crate::plan::{Backend, Limits};
use crate::report::{LimitApplied, Refusal};
use crate::sys;

/// Limit 1, not 0: with 0 the kernel still starts a piped core handler as root
/// (core(5), "Piping core dumps to a program"; fs/coredump.c tests for 1).
const CORE_BYTES: u64 = 1;

pub fn apply(limits: &Limits, backend: Backend) -> Result<(), Refusal> {
    set("core", libc::RLIMIT_CORE, Some(CORE_BYTES))?;
    // P1 runs in the same user namespace and counts against the same limit.
    // Without one it would count everything that the user runs; there P1 counts.
    let processes = limits.processes.filter(|_| backend == Backend::Namespaces);
    set("processes", libc::RLIMIT_NPROC, processes.map(|n| n.saturating_add(1)))?;
    set("files", libc::RLIMIT_NOFILE, limits.files)?;
    set("cpu_time", libc::RLIMIT_CPU, limits.cpu_time_s)?;
    set("memory", libc::RLIMIT_DATA, limits.memory_bytes)?;
    set("address_space", libc::RLIMIT_AS, limits.address_space_bytes)
}

/// More descriptors for ourselves while the box is made: P0 of a root caller holds one
/// for each grant. Returns the limit that is put back for the command.
pub fn raise_files() -> Option<libc::rlimit> {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain data that lives through the calls. What cannot be raised stays,
    // and a launch that needs more is refused where it runs out.
    unsafe {
        let raised = libc::getrlimit(libc::RLIMIT_NOFILE, &mut old) == 0
            && old.rlim_cur < old.rlim_max
            && libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: old.rlim_max, ..old }) == 0;
        raised.then_some(old)
    }
}

/// The caller's own limit, for the command.
pub fn restore_files(old: &libc::rlimit) -> Result<(), Refusal> {
    // SAFETY: old lives through the call.
    sys::check(i64::from(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, old) }))
        .map(drop)
        .map_err(|e| Refusal::new("rlimit_denied", "files").io(&e))
}

/// Does something under the process limit of a box with so many. A user namespace that is made meanwhile holds its
/// tasks to that in the one around, too, where both are counted (kernel/ucount.c, is_rlimit_overlimit; Linux 5.14).
pub fn while_processes<T>(most: Option<u64>, make: impl FnOnce() -> T) -> Result<T, Refusal> {
    let Some(most) = most else { return Ok(make()) };
    let fail = |e: std::io::Error| Refusal::new("rlimit_denied", "processes").io(&e);
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain data that lives through the call.
    sys::check(i64::from(unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &mut old) })).map_err(fail)?;
    let put = |limit: libc::rlimit| {
        // SAFETY: as above.
        sys::check(i64::from(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) })).map(drop).map_err(fail)
    };
    put(libc::rlimit { rlim_cur: most.saturating_add(1).min(old.rlim_cur), ..old })?;
    let made = make();
    put(old).map(|()| made)
}

fn set(name: &str, resource: libc::__rlimit_resource_t, value: Option<u64>) -> Result<(), Refusal> {
    let Some(value) = value else { return Ok(()) };
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: old is plain data that lives through the call.
    sys::check(i64::from(unsafe { libc::getrlimit(resource, &mut old) }))
        .map_err(|e| Refusal::new("rlimit_denied", name).io(&e))?;
    // A hard limit of the caller below the wish stays: the box never has more.
    let value = value.min(old.rlim_max);
    // The soft CPU limit raises SIGXCPU, the hard one a second later SIGKILL.
    let hard = if resource == libc::RLIMIT_CPU { value.saturating_add(1).min(old.rlim_max) } else { value };
    let new = libc::rlimit { rlim_cur: value, rlim_max: hard };
    // SAFETY: new lives through the call.
    sys::check(i64::from(unsafe { libc::setrlimit(resource, &new) }))
        .map(drop)
        .map_err(|e| Refusal::new("rlimit_denied", name).io(&e))
}

/// What is in force, for the receipt.
pub fn notes(limits: &Limits, backend: Backend) -> Vec<LimitApplied> {
    let mut notes = vec![LimitApplied { name: "core_bytes", value: CORE_BYTES, mechanism: "RLIMIT_CORE", exact: true }];
    let mut add = |name, value: Option<u64>, mechanism, exact| {
        notes.extend(value.map(|value| LimitApplied { name, value, mechanism, exact }));
    };
    // The caller's own hard limit, where it is lower, is what is in force.
    let below = |resource, value: Option<u64>| value.map(|value| value.min(hard_limit(resource)));
    match backend {
        Backend::Namespaces => {
            let processes = below(libc::RLIMIT_NPROC, limits.processes);
            add(
                "processes",
                processes,
                "RLIMIT_NPROC in the box's user namespace and those inside it (EAGAIN, not recorded)",
                true,
            );
        }
        Backend::Landlock => add("processes", limits.processes, "sampling of the tree every 100 ms", false),
    }
    add("files", below(libc::RLIMIT_NOFILE, limits.files), "RLIMIT_NOFILE per process (EMFILE, not recorded)", true);
    add(
        "cpu_time_s",
        below(libc::RLIMIT_CPU, limits.cpu_time_s),
        "RLIMIT_CPU per process and sampling of the tree every 100 ms",
        false,
    );
    add(
        "memory_bytes",
        below(libc::RLIMIT_DATA, limits.memory_bytes),
        "RLIMIT_DATA per process (ENOMEM, not recorded) and sampling of the tree every 100 ms",
        false,
    );
    add(
        "address_space_bytes",
        below(libc::RLIMIT_AS, limits.address_space_bytes),
        "RLIMIT_AS per process (ENOMEM, not recorded)",
        true,
    );
    add("wall_ms", limits.wall_ms, "timer of the supervisor", true);
    notes
}

/// The same for a box inside another, whose user namespace is a sibling of those inside it.
pub fn notes_inside(limits: &Limits, backend: Backend) -> Vec<LimitApplied> {
    let apart = |note: LimitApplied| {
        match note.name {
        "processes" => LimitApplied {
            mechanism:
                "RLIMIT_NPROC in the box's user namespace (EAGAIN, not recorded), boxes inside it apart, all within that of the outermost",
            exact: false,
            ..note
        },
        _ => note,
    }
    };
    notes(limits, backend).into_iter().map(apart).collect()
}

fn hard_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: now is plain data that lives through the call.
    match unsafe { libc::getrlimit(resource, &mut now) } {
        0 => now.rlim_max,
        _ => u64::MAX,
    }
}
