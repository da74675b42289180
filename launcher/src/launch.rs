//! P0's straight line: read, check, start, supervise, end alike.
//!
//! Owns the order on the outside, up to the fork of P1. Next: `session.rs` (what is known before),
//! `drive.rs` (from there to the end), `receipts.rs` (what is written), `ending.rs`.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::args::{self, Args};
use crate::init::{self, Start};
use crate::inside::Inside;
use crate::nested::{self, births, client, Nests};
use crate::plan::Backend;
use crate::receipts::Out;
use crate::report::{Refusal, Report};
use crate::session::{adopt, wall_ms, Block, Given, Session};
use crate::spool::Spool;
use crate::steps::mounts::Prepared;
use crate::steps::{caps, limits, userns};
use crate::supervise::Supervisor;
use crate::terminal::Terminal;
use crate::{alone, answers, clock, control, ending, look, processors, stores, sys, ulid, version};

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// From so many rows on, the descriptors of a usual limit (1024) may not do.
const MANY_ROWS: usize = 200;

/// The program. Returns the exit status; a signal of the command is raised, not returned.
pub fn main(words: &[&CStr], block: Block) -> i32 {
    let start = Start::save();
    let mut out = Out::nowhere();
    let args = match args::parse(words) {
        Ok(args) => args,
        Err(refusal) => return out.refuse(&refusal),
    };
    if args.version {
        println!("{}", version::json());
        return 0;
    }
    if args.nest {
        return client::main(&args, &block, &start);
    }
    if let Some(path) = &args.look {
        return look::main(path);
    }
    out.report = Report::new(args.report_fd.map(adopt));
    out.speaks = args.report_fd.is_none() && !args.quiet;
    out.run_id = match ulid::ulid() {
        Ok(id) => id,
        Err(e) => return out.refuse(&Refusal::new("resource", "random bytes").io(&e)),
    };
    // The plan before the spool: nothing of ours may be open when its descriptors are checked.
    let session = Session::open(&args, None, |args| Given::own(args, &block, &start), &out);
    out.spool = match args.spool.as_deref().map(|path| Spool::open(Path::new(path))).transpose() {
        Ok(spool) => spool,
        Err(e) => {
            clock::stop();
            return out.refuse(&Refusal::new("spool_failed", args.spool.unwrap_or_default()).io(&e));
        }
    };
    match session.and_then(|session| session.start(start, &out, &args, &block)) {
        Ok(code) => code,
        Err(refusal) => {
            clock::stop();
            let refusal = answers::taken_back(refusal, args.state_home.as_deref());
            let absent =
                refusal.is("not_found") && !args.argv[0].to_bytes().contains(&b'/') && !block.finds(&args.argv[0]);
            out.refuse(&if absent { refusal.not_installed() } else { refusal })
        }
    }
}

impl Session {
    pub fn start(mut self, mut start: Start, out: &Out, args: &Args, block: &Block) -> Result<i32, Refusal> {
        let box_json = self.box_json(&out.run_id);
        let fail = |what: &'static str| move |e: std::io::Error| Refusal::new("fork_failed", what).io(&e);
        let alone = self.loaded.plan.backend == Backend::Landlock;
        match (&self.inner, alone) {
            (_, true) => alone::adopt_orphans()?,
            (None, false) => caps::join_keyring()?,
            (Some(_), false) => {} // that of the box around is inherited
        }
        let (outer, inner) = control::pair().map_err(fail("control socket"))?;
        let (errors, errors_in) = sys::pipe().map_err(fail("pipe"))?;
        let signals = sys::signal_fd().map_err(fail("signalfd"))?;
        if self.loaded.plan.mounts.len() > MANY_ROWS {
            start.files = limits::raise_files();
        }
        let _stores = stores::hold(&self.loaded.plan)?; // kept to the end, here and by P1
        let (prepared, waiting) = userns::prepare(&self.loaded.plan)?;
        // Inside, whoever asked has the terminal.
        let mut terminal = if self.inner.is_some() { Terminal::none() } else { Terminal::open() };
        let env = std::mem::take(&mut self.env.env);
        let ours = [outer.as_raw_fd(), errors.as_raw_fd(), signals.as_raw_fd()];
        let spawn = Spawn {
            outer_fds: ours.into_iter().chain(handed_over(out, args)).chain(self.of_the_way_in()).collect(),
            inner,
            errors_in,
            prepared,
            argv: &args.argv,
            env,
            start,
            box_json: &box_json,
            wall_ms: wall_ms(&self.loaded.plan, args),
            traced: args.trace_fd.is_some(),
        };
        let (init, prepared) = self.fork(spawn, terminal.hand_over_at_start(), block)?;
        let mut supervisor = self.supervisor(init, (outer, errors, signals), terminal, args);
        let mapped = userns::map_box(init, self.loaded.plan.ids, &waiting);
        drop(prepared);
        match mapped.and_then(|()| self.drive(&mut supervisor, out, args, block)) {
            Ok(()) => Ok(match &self.inner {
                // At once: taking the box's namespaces apart is nothing that anybody waits for.
                Some(inner) => nested::say_end(inner, ending::told(&supervisor)),
                None => ending::finish(&supervisor),
            }),
            Err(refusal) => {
                clock::stop();
                supervisor.end_init();
                reap(init);
                if alone {
                    alone::sweep();
                }
                supervisor.terminal.take_back();
                Err(refusal)
            }
        }
    }

    fn supervisor(
        &self,
        init: libc::pid_t,
        (control, errors, signals): (OwnedFd, OwnedFd, OwnedFd),
        terminal: Terminal,
        args: &Args,
    ) -> Supervisor {
        Supervisor {
            init,
            alone: self.loaded.plan.backend == Backend::Landlock,
            control,
            errors: Some(errors),
            signals,
            terminal,
            caller: args.caller_pidfd,
            deadline: None,
            entrance: None,
            guards: self.loaded.plan.guards.clone(),
            guard_lost: self.loaded.plan.guard_lost,
            inside: Inside::default(),
            nests: Nests::default(),
            link: self.inner.as_ref().map(|inner| inner.link.as_raw_fd()),
            places: vec![],
            command: 0,
            started: false,
            tracer: None,
            snapshot: false,
            status: None,
            quiet: false,
            stop_asked: false,
            ended: None,
            limit: None,
            changed: String::new(),
            lost: vec![],
            degraded: vec![],
        }
    }

    /// Makes P1 with all its namespaces in one call.
    fn fork(
        &self,
        spawn: Spawn,
        terminal: Option<&OwnedFd>,
        block: &Block,
    ) -> Result<(libc::pid_t, Prepared), Refusal> {
        let backend = self.loaded.plan.backend;
        let namespaces = match backend {
            Backend::Namespaces => NAMESPACES,
            Backend::Landlock => 0,
        };
        // SAFETY: no failure.
        let ids = unsafe { (libc::geteuid(), libc::getegid()) };
        let pid = match &self.inner {
            // SAFETY: P0 is single-threaded, in either case.
            Some(inner) => unsafe { births::fork_inside(&inner.pid) }?,
            // SAFETY: as above.
            None => unsafe { sys::fork_into(namespaces) }.map_err(|e| Refusal::new("userns_denied", "clone").io(&e))?,
        };
        if pid != 0 {
            if let Err(e) = processors::start_elsewhere(pid) {
                // SAFETY: P1 is our child and has started nothing.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                reap(pid);
                return Err(Refusal::new("fork_failed", "processors").io(&e));
            }
            clock::watch(pid);
            // The trees are needed until their idmaps are set; everything else is P1's alone.
            return Ok((pid, spawn.prepared));
        }
        let launch = init::Launch {
            plan: &self.loaded.plan,
            copies: &self.copies,
            prepared: spawn.prepared,
            argv: spawn.argv,
            env: spawn.env,
            cwd: &self.cwd,
            box_json: spawn.box_json,
            terminal,
            start: spawn.start,
            control: spawn.inner,
            errors: Some(spawn.errors_in),
            wall_ms: spawn.wall_ms,
            traced: spawn.traced,
            ids,
            inner: self.inner.as_ref(),
            begun: None,
            outer: spawn.outer_fds,
        };
        match backend {
            Backend::Namespaces => init::run(launch, || block.wipe()),
            Backend::Landlock => alone::run(launch, || block.wipe()),
        }
    }
}

impl Session {
    /// Descriptors of an inner supervisor that its P1 does not need.
    fn of_the_way_in(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.inner.iter().flat_map(|inner| [&inner.link, &inner.proc, &inner.pid].map(AsRawFd::as_raw_fd))
    }
}

/// P0's descriptors that came from the caller.
fn handed_over(out: &Out, args: &Args) -> impl Iterator<Item = RawFd> {
    let spool = out.spool.as_ref().map(Spool::descriptor);
    let uplink = out.uplink.as_ref().map(AsRawFd::as_raw_fd);
    [out.report.descriptor(), spool, args.caller_pidfd, args.trace_fd, uplink].into_iter().flatten()
}

/// What the child's copy takes with it.
struct Spawn<'a> {
    outer_fds: Vec<RawFd>,
    inner: OwnedFd,
    errors_in: OwnedFd,
    prepared: Prepared,
    argv: &'a [CString],
    env: Vec<CString>,
    start: Start,
    box_json: &'a str,
    wall_ms: Option<u64>,
    traced: bool,
}

/// P1 is our unreaped child. Its death takes every process of the box along.
fn reap(init: libc::pid_t) {
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(init, std::ptr::null_mut(), 0) };
}
