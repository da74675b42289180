//! P1, the box's process 1, and P2, the command, up to exec.
//!
//! Owns the order of the steps. P1 builds the box and then only reaps, reports
//! and watches; P2 shares nothing with it that it could read, write or trace.
//! Whatever fails here is sent to P0 as a refusal and ends the box: there is no
//! path on which the command starts with less than the plan says.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::control::{self, Event, Order};
use crate::copyback::{self, Held};
use crate::cover::Covers;
use crate::discard;
use crate::nested::{births, ring, Inner};
use crate::plan::{Backend, Guard, GuardLost, Ids, Net, Plan};
use crate::report::Refusal;
use crate::steps::beside::Beside;
use crate::steps::guards::{self, Placed};
use crate::steps::landlock::{self, Begun, Gives};
use crate::steps::mounts::{self, Prepared};
use crate::steps::{caps, exec, fds, limits, overlay, record, seccomp, userns};
use crate::sys;
use crate::watch::{Tree, Watch};

/// What P0 made before P1 existed.
pub struct Launch<'a> {
    pub plan: &'a Plan,
    pub copies: &'a [Held],
    pub prepared: Prepared,
    pub argv: &'a [CString],
    pub env: Vec<CString>,
    pub cwd: &'a str,
    pub box_json: &'a str,
    /// The terminal, when the command is to start in its foreground.
    pub terminal: Option<&'a OwnedFd>,
    pub start: Start,
    pub control: OwnedFd,
    /// Closes when the command has started, or carries one refusal.
    pub errors: Option<OwnedFd>,
    pub wall_ms: Option<u64>,
    pub ids: (u32, u32),
    /// Of a box inside another.
    pub inner: Option<&'a Inner>,
    /// P0 watches the command: it waits until the tracer holds it.
    pub traced: bool,
    /// The command's rule set, where P1 has begun it.
    pub begun: Option<Begun>,
    /// P0's own descriptors, of which P1 has a copy.
    pub outer: Vec<RawFd>,
}

const SIGNALS: i32 = 64;

/// How the caller started us, restored for the command.
#[derive(Clone)]
pub struct Start {
    pub mask: libc::sigset_t,
    pub sigchld_ignored: bool,
    pub umask: libc::mode_t,
    /// The limit of descriptors, where we raised it for ourselves.
    pub files: Option<libc::rlimit>,
    /// Of a box inside another: whose signals are ignored, one bit for each; all others do what they do.
    pub ignored: Option<u64>,
}

impl Start {
    /// Reads the state at entry and prepares P0: SIGCHLD must not be ignored, or
    /// the kernel reaps on its own and the status is lost (wait(2), "Notes").
    pub fn save() -> Start {
        // SAFETY: sigaction structures are plain data that live through the calls.
        let sigchld_ignored = unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGCHLD, &new, &mut old);
            old.sa_sigaction == libc::SIG_IGN
        };
        // SAFETY: umask has no failure; it is put back at once.
        let umask = unsafe {
            let umask = libc::umask(0o077);
            libc::umask(umask);
            umask
        };
        Start { mask: sys::block_all_signals(), sigchld_ignored, umask, files: None, ignored: None }
    }

    /// For a command whose caller is not ours: nothing of P0's own start counts for it.
    pub fn inside(ignored: u64) -> Start {
        // SAFETY: an empty set is plain data.
        let mask = unsafe { std::mem::zeroed() };
        Start { mask, sigchld_ignored: false, umask: 0o077, files: None, ignored: Some(ignored) }
    }

    /// The signals that this process ignores.
    pub fn ignored_here() -> u64 {
        let is_ignored = |number: &i32| {
            // SAFETY: sigaction is plain data that lives through the call, which only reads.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(*number, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
            }
        };
        (1..=SIGNALS).filter(is_ignored).fold(0, |bits, number| bits | 1 << (number - 1))
    }

    /// Lets signals end this process as the caller would have it, until the mask that is returned is set
    /// again. Those that stop a job wait all the same: whoever gave us the terminal waits for a record.
    pub fn let_end(&self) -> libc::sigset_t {
        let mut mask = self.mask;
        for stop in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            // SAFETY: the set is plain data that lives through the call.
            unsafe { libc::sigaddset(&mut mask, stop) };
        }
        sys::set_mask(&mask)
    }

    fn restore(&self) {
        let inside = self.ignored.map(|bits| (bits, SIGNALS)).unwrap_or_default();
        for number in 1..=inside.1 {
            let ignored = inside.0 & 1 << (number - 1) != 0;
            // SAFETY: no handler of ours is set; for numbers that take none the call says so.
            unsafe { libc::signal(number, if ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
        }
        // SAFETY: the structures live through the calls.
        unsafe {
            if self.sigchld_ignored {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::umask(self.umask);
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// Runs as P1. Never returns: the exit code is of no interest, P0 knows the rest.
pub fn run(mut launch: Launch, wipe: impl Fn()) -> ! {
    close_outer(&mut launch);
    // Held until we have spoken: its end is our end to P2, which then says that on the pipe of our own words.
    let mut gate = None;
    let code = match build(&mut launch).and_then(|built| start(&mut launch, built, &mut gate, &wipe)) {
        Ok(watch) => watch.run(),
        Err(refusal) => report(launch.errors.as_ref(), &refusal),
    };
    // SAFETY: no destructor of P0's may run in its copy.
    unsafe { libc::_exit(code) }
}

/// First: with a copy of P0's end the socket would never end, and a P0 that was
/// killed before our parent-death signal is set would leave us for ever.
pub fn close_outer(launch: &mut Launch) {
    for fd in std::mem::take(&mut launch.outer) {
        // SAFETY: nothing in this process uses them.
        unsafe { libc::close(fd) };
    }
}

pub fn report(errors: Option<&OwnedFd>, refusal: &Refusal) -> i32 {
    if let Some(pipe) = errors {
        let bytes = refusal.to_bytes();
        // SAFETY: the buffer lives through the call. A pipe takes up to 4096 bytes whole.
        unsafe { libc::write(pipe.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    }
    125
}

/// What `start` goes on with.
struct Built {
    guards: Vec<Placed>,
    beside: Option<Beside>,
}

/// Step 1 (user namespace), Step 2 (mount namespace, made with all others by
/// clone), Steps 3 to 6.
fn build(launch: &mut Launch) -> Result<Built, Refusal> {
    let (plan, control) = (launch.plan, launch.control.as_raw_fd());
    own_group()?;
    die_with_parent()?;
    let proc = launch.inner.map(|inner| births::settle(&inner.user)).transpose()?;
    if let (Ids::Identity, None) = (plan.ids, &proc) {
        userns::map_self(launch.ids.0, launch.ids.1)?;
    }
    wait_for(control, &Order::Build)?;
    userns::become_box_root(plan.ids)?;
    // Changing ids has cleared it (prctl(2), PR_SET_PDEATHSIG).
    die_with_parent()?;
    let beside = (plan.net == Net::None).then(|| Beside::start(control, plan.mounts.len())).transpose()?;
    name_host(&plan.hostname)?;
    // SAFETY: umask has no failure; mount points get the modes that the plan says.
    unsafe { libc::umask(0) };
    let root = mounts::build(plan, launch.prepared.take(), proc)?;
    copyback::place(&root, plan, launch.copies)?;
    let watched = receive_covers(control, &root)?;
    let listener = record::place(&root, launch.box_json)?;
    let guards = guards::place_all(root.fd.as_raw_fd(), &[plan.guards.clone(), watched].concat())?;
    root.seal_all(plan)?;
    root.enter()?;
    beside.as_ref().map(Beside::join_net).transpose()?;
    if root.snapshot {
        control::send_event(control, &Event::Snapshot).map_err(|_| gone())?;
    }
    let (places, used) = discard::before(&root, &plan.discards)?;
    control::send_listener(control, listener.as_raw_fd(), &places, used).map_err(|_| gone())?;
    if launch.inner.is_some() {
        // For guards that are put back, and for boxes inside this one; now, since P0 sees no /proc of ours.
        control::send_spaces(control).map_err(|e| Refusal::new("namespace_denied", "box").io(&e))?;
    }
    Ok(Built { guards, beside })
}

/// What P0 found on the host.
pub fn covers(control: RawFd) -> Result<Covers, Refusal> {
    let Ok(Some(text)) = control::receive_covers(control) else { return Err(gone()) };
    let invalid = |e: serde_json::Error| Refusal::new("mount_denied", "covers").detail(e.to_string());
    serde_json::from_slice(&text).map_err(invalid)
}

/// Covers what P0 found on the host; returns the guards to be placed with those of the plan.
fn receive_covers(control: RawFd, root: &mounts::Root) -> Result<Vec<Guard>, Refusal> {
    let covers = covers(control)?;
    covers.dirs.iter().try_for_each(|dir| overlay::cover(root, dir))?;
    covers.files.iter().try_for_each(|file| overlay::cover_file(root, file))?;
    Ok(covers.guards)
}

/// Its own group: else kill(0, …) from inside reaches the caller's pipeline.
pub fn own_group() -> Result<(), Refusal> {
    // SAFETY: no pointers.
    let ret = unsafe { libc::setpgid(0, 0) };
    sys::check(i64::from(ret)).map(drop).map_err(|e| Refusal::new("fork_failed", "process group").io(&e))
}

/// P0's death kills P1, and with P1 the kernel kills the whole pid namespace. A
/// P0 that died before this call is seen as the end of the control socket.
fn die_with_parent() -> Result<(), Refusal> {
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map_err(|e| Refusal::new("fork_failed", "P1").io(&e))
}

pub fn wait_for(control: RawFd, wanted: &Order) -> Result<(), Refusal> {
    match control::receive_order(control, true) {
        Ok(Some(order)) if order == *wanted => Ok(()),
        _ => Err(gone()),
    }
}

pub fn gone() -> Refusal {
    Refusal::new("caller_gone", "supervisor")
}

fn name_host(name: &str) -> Result<(), Refusal> {
    // SAFETY: pointer and length describe the string.
    let ret = unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) };
    sys::check(i64::from(ret)).map(drop).map_err(|e| Refusal::new("namespace_denied", "uts").io(&e))
}

/// Step 7: forks the command, then turns P1 into a process that can do nothing
/// but reap, report and watch.
fn start(launch: &mut Launch, built: Built, held: &mut Option<Gate>, wipe: &impl Fn()) -> Result<Watch, Refusal> {
    let control = launch.control.as_raw_fd();
    wait_for(control, &Order::Start)?;
    // Before the fork: the command never sees a readable process 1 (ptrace(2),
    // "Ptrace access mode checking"). execve makes the command dumpable again.
    // P0's tracer must be able to hold the command before that: there P1 follows below,
    // while the command waits at its gate and nothing else runs in the box.
    readable(launch.traced)?;
    caps::empty_bounding_set()?;
    caps::no_new_privs()?;
    let signals = sys::signal_fd().map_err(|e| Refusal::new("fork_failed", "signalfd").io(&e))?;
    let mounts =
        std::fs::File::open("/proc/self/mountinfo").map_err(|e| Refusal::new("proc_denied", "mountinfo").io(&e))?;
    *held = Some(Gate::new()?);
    // SAFETY: the thread of `Beside` holds no lock and takes none before it is told of the fork.
    let pid = unsafe { sys::fork_into(0) }.map_err(|e| Refusal::new("fork_failed", "command").io(&e))?;
    if pid == 0 {
        let refusal = held.take().map_or_else(gone, |gate| command(launch, gate));
        let code = report(launch.errors.as_ref(), &refusal);
        // SAFETY: as above.
        unsafe { libc::_exit(code) }
    }
    readable(false)?;
    let moves = guards::Moves::new(&built.guards);
    if launch.inner.is_none() {
        control::send_forked(control, pid).map_err(|_| gone())?;
    }
    wipe();
    launch.env.iter_mut().for_each(forget);
    built.beside.map_or_else(mounts::leave_old_root, Beside::end)?;
    sys::prctl(libc::PR_SET_NAME, c"stockade-init".as_ptr() as u64)
        .map_err(|e| Refusal::new("fork_failed", "P1").io(&e))?;
    caps::drop_all()?;
    seccomp::install("init").map_err(|e| Refusal::new("seccomp_denied", "init").io(&e))?;
    if launch.traced {
        wait_for_tracer(control, pid)?;
    }
    if let Some(gate) = held.take() {
        gate.open(launch.errors.take());
    }
    Ok(Watch {
        command: pid,
        control,
        signals,
        mounts,
        moves,
        guards: built.guards,
        lost: vec![],
        absent: vec![],
        memory_bytes: launch.plan.limits.memory_bytes,
        cpu_time_s: launch.plan.limits.cpu_time_s,
        processes: None,
        tree: Tree::Namespace,
        keeper: None,
        end_on_loss: launch.plan.guard_lost == GuardLost::End,
        deadline: Watch::deadline(launch.wall_ms),
    })
}

pub fn readable(by_tracers: bool) -> Result<(), Refusal> {
    sys::prctl(libc::PR_SET_DUMPABLE, u64::from(by_tracers)).map_err(|e| Refusal::new("fork_failed", "P1").io(&e))
}

/// Signals may come before the word that the tracer holds the command.
fn wait_for_tracer(control: RawFd, command: libc::pid_t) -> Result<(), Refusal> {
    loop {
        match control::receive_order(control, true) {
            Ok(Some(Order::Traced)) => return Ok(()),
            Ok(Some(Order::Signal { number, group })) => {
                let to = if group { -command } else { command };
                // SAFETY: no pointers; the command is our unreaped child.
                unsafe { libc::kill(to, number) };
            }
            _ => return Err(gone()),
        }
    }
}

/// Values of the command's environment do not stay in P1's memory.
pub fn forget(item: &mut CString) {
    let mut bytes = std::mem::take(item).into_bytes();
    bytes.fill(0);
    std::hint::black_box(&bytes);
}

/// What a command says that finds itself alone at its gate; only P0 can know why.
pub const GONE: &str = "P1";

/// P2 execs only when P1 is ready: a P1 that fails refuses a launch whose
/// command never ran.
pub struct Gate {
    wait: OwnedFd,
    open: OwnedFd,
}

impl Gate {
    pub fn new() -> Result<Gate, Refusal> {
        let (wait, open) = sys::pipe().map_err(|e| Refusal::new("fork_failed", "pipe").io(&e))?;
        Ok(Gate { wait, open })
    }

    /// In P1, with nothing left that could fail.
    pub fn open(self, errors: Option<OwnedFd>) {
        // Before the byte: P0 takes the end of this pipe as "the command has started".
        drop(errors);
        // SAFETY: one byte of a static string.
        unsafe { libc::write(self.open.as_raw_fd(), c"g".as_ptr().cast(), 1) };
    }

    /// In P2; an error when P1 has gone without a word.
    fn pass(self) -> Result<(), Refusal> {
        drop(self.open);
        let mut byte = 0u8;
        // SAFETY: one byte that lives through the call.
        match unsafe { libc::read(self.wait.as_raw_fd(), std::ptr::addr_of_mut!(byte).cast(), 1) } {
            1 => Ok(()),
            _ => Err(Refusal::new("fork_failed", GONE)),
        }
    }
}

/// Steps 8 to 14, as P2. Returns only what went wrong.
pub fn command(launch: &mut Launch, gate: Gate) -> Refusal {
    let ready = || {
        if launch.inner.is_some() {
            // P1 has no power over its pid namespace, which is the outer box's: only its own number would be believed.
            control::send_forked(launch.control.as_raw_fd(), std::process::id() as libc::pid_t).map_err(|_| gone())?;
        }
        let candidates = prepare_command(launch)?;
        gate.pass()?;
        if launch.traced {
            // Not before the tracer is there: these calls fail without one.
            seccomp::install("trace").map_err(|e| Refusal::new("seccomp_denied", "trace").io(&e))?;
        }
        Ok(candidates)
    };
    match ready() {
        Ok(candidates) => exec::exec(&candidates, launch.argv, &launch.env),
        Err(refusal) => refusal,
    }
}

fn prepare_command(launch: &mut Launch) -> Result<Vec<CString>, Refusal> {
    let plan = launch.plan;
    // The group that the terminal is handed to, and all that kill(0, …) reaches.
    own_group()?;
    take_terminal(launch.terminal);
    fds::close_others(&plan.fds)?;
    if plan.backend == Backend::Landlock {
        fds::check_sockets(&plan.fds)?;
    }
    caps::drop_all()?;
    caps::no_new_privs()?;
    let dir = exec::open_dir(launch.cwd)?;
    restrict_files(launch)?;
    launch.start.files.as_ref().map(limits::restore_files).transpose()?;
    let around = launch.inner.map(|inner| &inner.ring);
    around.map(|ring| ring.limits.iter().try_for_each(|limits| limits::apply(limits, plan.backend))).transpose()?;
    limits::apply(&plan.limits, plan.backend)?;
    launch.start.restore();
    let outer = around.map(|ring| ring.filters.as_slice()).unwrap_or_default();
    for filter in outer.iter().filter(|filter| **filter != plan.seccomp.filter).chain([&plan.seccomp.filter]) {
        seccomp::install(filter).map_err(|e| Refusal::new("seccomp_denied", filter.as_str()).io(&e))?;
    }
    exec::change_dir(&dir, launch.cwd)?;
    // A relative program is found from there, as execve will find it.
    let candidates = exec::candidates(launch.argv[0].as_c_str(), &launch.env);
    exec::check_executable(&candidates, plan.executable.as_deref())?;
    Ok(candidates)
}

/// The plan's rules, and in the same set those of the box around.
fn restrict_files(launch: &mut Launch) -> Result<(), Refusal> {
    let ring = launch.inner.map(|inner| &inner.ring);
    let Some(rules) = ring::landlock_of(launch.plan, ring) else { return Ok(()) };
    let kept: Vec<RawFd> = (0..=2).chain(launch.plan.fds.iter().copied()).collect();
    let outer = ring.and_then(|ring| ring.landlock.as_ref());
    let around = outer.map(|outer| landlock::Around { outer, rows: &launch.plan.mounts });
    let places = (around.as_ref(), launch.plan.backend);
    let begun = match launch.begun.take() {
        Some(begun) => begun,
        None => Begun::new(&rules)?.add(&rules, Gives::Reading, places)?,
    };
    begun.add(&rules, Gives::Writing, places)?.restrict(&kept)
}

/// Done by the command itself, so that it never runs a moment in the background.
/// SIGTTOU, which tcsetpgrp(3) raises for a background caller, is blocked here.
fn take_terminal(terminal: Option<&OwnedFd>) {
    if let Some(tty) = terminal {
        // SAFETY: the descriptor is ours. A terminal that hung up meanwhile is no reason to stop.
        unsafe { libc::tcsetpgrp(tty.as_raw_fd(), libc::getpgrp()) };
    }
}
