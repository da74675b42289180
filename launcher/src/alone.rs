//! A box without namespaces: P1 in a Landlock domain of its own.
//!
//! Owns what takes the place of the pid namespace: P1 enters a domain that scopes signals before it
//! forks, so `kill(-1)` from it reaches exactly what it started and nothing else, and everything
//! that loses its parent becomes P1's child. Owns, too, what a plan of this backend may say: nothing
//! that needs a mount. Fails closed: P1 makes sure that a signal does not leave its domain before it
//! ever sends one. Source: landlock(7), "Scope flags"; kill(2); prctl(2), PR_SET_CHILD_SUBREAPER.
//! Read next: init.rs (P2, which is the same), steps/landlock.rs.

use std::os::fd::{AsRawFd, RawFd};

use crate::control::{self, Event, Order};
use crate::init::{self, Gate, Launch};
use crate::keeper::Keeper;
use crate::plan::{invalid, Backend, GuardLost, Ids, Net, Plan};
use crate::report::Refusal;
use crate::steps::landlock::{self, Begun, Gives};
use crate::steps::{caps, guards, seccomp};
use crate::sys;
use crate::watch::{Tree, Watch};

/// Scopes of signals and of abstract sockets.
pub const ABI: u8 = 6;

/// The filter of a command: what namespaces would keep apart is refused by it.
pub fn filter(net: Net) -> &'static str {
    match net {
        Net::None => "landlock-offline",
        Net::Host => "landlock",
    }
}

/// Refuses a plan that asks for what only a namespace can give.
pub fn check(plan: &Plan) -> Result<(), Refusal> {
    let without = [
        ("mounts", plan.mounts.is_empty()),
        ("guards", plan.guards.is_empty()),
        ("namespaces", plan.namespaces.is_empty()),
        ("discards", plan.discards.is_empty()),
        ("copyback", plan.copyback.is_empty()),
        ("cover_sockets", !plan.cover_sockets),
        ("ids", matches!(plan.ids, Ids::Identity)),
    ];
    if let Some((field, _)) = without.iter().find(|(_, good)| !good) {
        let detail = "got what needs a namespace, expected none of it with backend landlock";
        return Err(Refusal::new("plan_invalid", *field).detail(detail));
    }
    let whole = plan.landlock.as_ref().is_some_and(|l| l.abi >= ABI && l.scope_signal && l.scope_abstract);
    if !whole {
        let detail = "got no rules with both scopes, expected them with backend landlock";
        return Err(Refusal::new("plan_invalid", "landlock").detail(detail));
    }
    if plan.seccomp.filter != filter(plan.net) {
        return Err(invalid("seccomp.filter", &plan.seccomp.filter));
    }
    Ok(())
}

/// Root would keep what its number gives it on the host.
pub fn check_caller() -> Result<(), Refusal> {
    // SAFETY: no failure.
    match unsafe { libc::getuid() == 0 || libc::geteuid() == 0 } {
        true => Err(Refusal::new("plan_invalid", "backend").detail("got a root caller, expected an ordinary user")),
        false => Ok(()),
    }
}

/// Whoever loses its parent below this process becomes its child.
pub fn adopt_orphans() -> Result<(), Refusal> {
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(|e| Refusal::new("fork_failed", "subreaper").io(&e))
}

/// Runs as P1. Never returns.
pub fn run(mut launch: Launch, wipe: impl Fn()) -> ! {
    init::close_outer(&mut launch);
    let code = match build(&launch).and_then(|()| Domain::enter()) {
        Ok(domain) => {
            // Held until we have spoken: its end is our end to P2, which then says that in our place.
            let mut gate = None;
            let code = match start(&mut launch, &mut gate, &wipe) {
                Ok(watch) => watch.run(),
                Err(refusal) => init::report(launch.errors.as_ref(), &refusal),
            };
            domain.end();
            code
        }
        Err(refusal) => init::report(launch.errors.as_ref(), &refusal),
    };
    // SAFETY: no destructor of P0's may run in its copy.
    unsafe { libc::_exit(code) }
}

/// The Landlock domain of P1 and of all that it starts. There is none without a check.
struct Domain(());

impl Domain {
    fn enter() -> Result<Domain, Refusal> {
        caps::no_new_privs()?;
        landlock::scope_signals()?;
        // SAFETY: no failure, no pointers; signal 0 is only asked about. P0, or whoever took its
        // place, runs outside.
        let (parent, reached) = unsafe {
            let parent = libc::getppid();
            (parent, parent > 1 && libc::kill(parent, 0) == 0)
        };
        // Only what the domain refuses proves that it holds: somebody who is gone is out of reach of everybody.
        match (parent, reached, sys::errno()) {
            (0 | 1, ..) => Err(init::gone()),
            (_, false, libc::EPERM) => Ok(Domain(())),
            (_, false, _) => Err(init::gone()),
            (_, true, _) => {
                let detail = "got one out of the domain, expected EPERM";
                Err(Refusal::new("landlock_denied", "signals").detail(detail))
            }
        }
    }

    /// Ends all of it but this process: one signal, during which nothing can be forked, reaches every
    /// process (kernel/signal.c, kill_something_info); then until none is left.
    fn end(&self) {
        loop {
            // SAFETY: no pointers. What may be reached is what `enter` has checked.
            let left = unsafe {
                libc::kill(-1, libc::SIGKILL);
                libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL)
            };
            if left < 0 && sys::errno() == libc::ECHILD {
                return;
            }
        }
    }
}

fn build(launch: &Launch) -> Result<(), Refusal> {
    init::own_group()?;
    init::wait_for(launch.control.as_raw_fd(), &Order::Build)?;
    adopt_orphans()
}

/// With them comes the word that what killed boxes left is settled: nothing of it is moved any more while
/// P2 opens what it may write to.
fn refuse_covers(control: RawFd) -> Result<(), Refusal> {
    let covers = init::covers(control)?;
    match covers.guards.first().map(|guard| guard.path.as_str()).or(covers.files.first().map(String::as_str)) {
        // It was not there when the plan was made, and nothing but a mount could guard it.
        Some(path) => Err(Refusal::new("guard_denied", path).detail("got a new one, which needs namespaces to guard")),
        None => Ok(()),
    }
}

/// The command waits at its gate for the order to start: what P2 is made of is made meanwhile.
fn start(launch: &mut Launch, held: &mut Option<Gate>, wipe: &impl Fn()) -> Result<Watch, Refusal> {
    let control = launch.control.as_raw_fd();
    let rules = launch.plan.landlock.as_ref().map(landlock::rules);
    let begin = |rules| Begun::new(rules)?.add(rules, Gives::Reading, (None, Backend::Landlock));
    launch.begun = rules.as_ref().map(begin).transpose()?;
    refuse_covers(control)?;
    init::readable(false)?;
    let signals = sys::signal_fd().map_err(|e| Refusal::new("fork_failed", "signalfd").io(&e))?;
    let mounts = std::fs::File::open("/dev/null").map_err(|e| Refusal::new("fork_failed", "/dev/null").io(&e))?;
    *held = Some(Gate::new()?);
    // SAFETY: P1 has one thread.
    let pid = unsafe { sys::fork_into(0) }.map_err(|e| Refusal::new("fork_failed", "command").io(&e))?;
    if pid == 0 {
        let refusal = match (end_with_init(), held.take()) {
            (Ok(()), Some(gate)) => init::command(launch, gate),
            (Err(refusal), _) => refusal,
            (Ok(()), None) => init::gone(),
        };
        let code = init::report(launch.errors.as_ref(), &refusal);
        // SAFETY: as above.
        unsafe { libc::_exit(code) }
    }
    control::send_event(control, &Event::ForkedAs(pid)).map_err(|_| init::gone())?;
    launch.begun = None;
    wipe();
    launch.env.iter_mut().for_each(init::forget);
    sys::prctl(libc::PR_SET_NAME, c"stockade-init".as_ptr() as u64)
        .map_err(|e| Refusal::new("fork_failed", "P1").io(&e))?;
    caps::drop_all()?;
    let keeper = Keeper::start()?;
    seccomp::install("init").map_err(|e| Refusal::new("seccomp_denied", "init").io(&e))?;
    init::wait_for(control, &Order::Start)?;
    if let Some(gate) = held.take() {
        gate.open(launch.errors.take());
    }
    Ok(Watch {
        command: pid,
        control,
        signals,
        mounts,
        moves: guards::Moves::new(&[]),
        guards: vec![],
        lost: vec![],
        absent: vec![],
        memory_bytes: launch.plan.limits.memory_bytes,
        cpu_time_s: launch.plan.limits.cpu_time_s,
        processes: launch.plan.limits.processes,
        tree: Tree::Descendants { but: keeper.pid },
        keeper: Some(keeper),
        end_on_loss: launch.plan.guard_lost == GuardLost::End,
        deadline: Watch::deadline(launch.wall_ms),
    })
}

/// A P1 that somebody else kills takes the command along; P0 and the keeper end what is left then.
fn end_with_init() -> Result<(), Refusal> {
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map_err(|e| Refusal::new("fork_failed", "command").io(&e))
}

/// P0's, once P1 is reaped: where P1 was killed from outside, what it had has come to P0.
pub fn sweep() {
    loop {
        // SAFETY: no status is asked for.
        let ended = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
        if ended < 0 && sys::errno() == libc::ECHILD {
            return; // whoever lives would be below a child of ours
        }
        if ended > 0 {
            continue;
        }
        for pid in crate::watch::descendants() {
            // SAFETY: no pointers; a child of this process, or below one.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        }
        // SAFETY: as above. One has ended by now, or will.
        unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) };
    }
}
