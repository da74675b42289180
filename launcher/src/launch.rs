//! P0's straight line: read, check, start, supervise, end alike.
//!
//! Owns the order on the outside. Next: `session.rs` (what is known before),
//! `supervise.rs` (the loop), `receipts.rs` (what is written), `ending.rs`.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::appear;
use crate::args::{self, Args};
use crate::init::{self, Start};
use crate::inside::Inside;
use crate::nest::Entrance;
use crate::persist::journal::Journal;
use crate::persist::journals::Journals;
use crate::receipts::{self, refuse, Out, Settled, Watched};
use crate::report::{Outcome, Refusal, Report};
use crate::session::{adopt, wall_ms, Block, Session};
use crate::spool::Spool;
use crate::steps::mounts::Prepared;
use crate::steps::{caps, limits, userns};
use crate::supervise::{Step, Supervisor};
use crate::terminal::Terminal;
use crate::trace::{self, Tracer};
use crate::{control, cover, ending, persist, processors, stores, sys, ulid, version};

/// From so many rows on, the descriptors of a usual limit (1024) may not do.
const MANY_ROWS: usize = 200;

/// The program. Returns the exit status; a signal of the command is raised, not returned.
pub fn main(words: &[&CStr], block: Block) -> i32 {
    let start = Start::save();
    let args = match args::parse(words) {
        Ok(args) => args,
        Err(refusal) => return refuse(&refusal, "", &Report::new(None), None),
    };
    if args.version {
        println!("{}", version::json());
        return 0;
    }
    let report = Report::new(args.report_fd.map(adopt));
    let run_id = match ulid::ulid() {
        Ok(id) => id,
        Err(e) => return refuse(&Refusal::new("resource", "random bytes").io(&e), "", &report, None),
    };
    // The plan before the spool: nothing of ours may be open when its descriptors are checked.
    let session = Session::open(&args, &block, start);
    let spool = match args.spool.as_deref().map(|path| Spool::open(Path::new(path))).transpose() {
        Ok(spool) => spool,
        Err(e) => {
            return refuse(&Refusal::new("spool_failed", args.spool.unwrap_or_default()).io(&e), &run_id, &report, None)
        }
    };
    let out = Out { run_id, report, spool };
    match session.and_then(|session| session.start(&out, &args, &block)) {
        Ok(code) => code,
        Err(refusal) => refuse(&refusal, &out.run_id, &out.report, out.spool.as_ref()),
    }
}

impl Session {
    fn start(mut self, out: &Out, args: &Args, block: &Block) -> Result<i32, Refusal> {
        let box_json = self.box_json(&out.run_id);
        let fail = |what: &'static str| move |e: std::io::Error| Refusal::new("fork_failed", what).io(&e);
        caps::join_keyring()?;
        let (outer, inner) = control::pair().map_err(fail("control socket"))?;
        let (errors, errors_in) = sys::pipe().map_err(fail("pipe"))?;
        let signals = sys::signal_fd().map_err(fail("signalfd"))?;
        if self.loaded.plan.mounts.len() > MANY_ROWS {
            self.start.files = limits::raise_files();
        }
        let _stores = stores::hold(&self.loaded.plan)?; // kept to the end, here and by P1
        let (prepared, waiting) = userns::prepare(&self.loaded.plan)?;
        let mut terminal = Terminal::open();
        let env = std::mem::take(&mut self.env.env);
        let ours = [outer.as_raw_fd(), errors.as_raw_fd(), signals.as_raw_fd()];
        let spawn = Spawn {
            outer_fds: ours.into_iter().chain(handed_over(out, args)).collect(),
            inner,
            errors_in,
            prepared,
            argv: &args.argv,
            env,
            box_json: &box_json,
            wall_ms: wall_ms(&self.loaded.plan, args),
            traced: args.trace_fd.is_some(),
        };
        let (init, prepared) = self.fork(spawn, terminal.hand_over_at_start(), block)?;
        let mut supervisor = self.supervisor(init, (outer, errors, signals), terminal, args);
        let mapped = userns::map_box(init, self.loaded.plan.ids, &waiting);
        drop(prepared);
        match mapped.and_then(|()| self.drive(&mut supervisor, out, args)) {
            Ok(()) => Ok(ending::finish(&supervisor)),
            Err(refusal) => {
                kill_and_reap(init);
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
            places: vec![],
            command: 0,
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
        let namespaces = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP;
        // SAFETY: no failure.
        let ids = unsafe { (libc::geteuid(), libc::getegid()) };
        // SAFETY: P0 is single-threaded.
        let pid = unsafe { sys::fork_into(namespaces) }.map_err(|e| Refusal::new("userns_denied", "clone").io(&e))?;
        if pid != 0 {
            if let Err(e) = processors::start_elsewhere(pid) {
                kill_and_reap(pid);
                return Err(Refusal::new("fork_failed", "processors").io(&e));
            }
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
            start: self.start.clone(),
            control: spawn.inner,
            errors: Some(spawn.errors_in),
            wall_ms: spawn.wall_ms,
            traced: spawn.traced,
            ids,
            outer: spawn.outer_fds,
        };
        init::run(launch, || block.wipe())
    }

    /// From the first order to P1 until every process is dead.
    fn drive(&self, box_: &mut Supervisor, out: &Out, args: &Args) -> Result<(), Refusal> {
        let plan = &self.loaded.plan;
        order(box_, &control::Order::Build)?;
        let journals = self.journals(args)?;
        // Before P1 guards anything, for which it waits for the covers: what a killed box left and is
        // moved now is no longer there to be guarded, and from here on no other box moves what this
        // one guards.
        let (journal, settled) = self.open_journal(journals.as_ref(), out)?;
        let mut covers = cover::find(plan, &self.cwd)?;
        covers.guards.extend(appear::find(plan)?);
        let text =
            serde_json::to_vec(&covers).map_err(|e| Refusal::new("mount_denied", "covers").detail(e.to_string()))?;
        box_.guards.extend(covers.guards);
        sent(box_, control::send_covers(box_.control.as_raw_fd(), &text))?;
        if !box_.guards.is_empty() {
            match Entrance::open(box_.init) {
                Ok(way) => box_.entrance = Some(way),
                Err(e) => return Err(why_gone(box_, Refusal::new("guard_denied", "entrance").io(&e))),
            }
        }
        let watched = self.note_roots(journal, settled)?;
        out.report.ready()?;
        if let Some(spool) = &out.spool {
            // Found out before the command runs, not after.
            spool.ready().map_err(|e| Refusal::new("spool_failed", "spool").io(&e))?;
        }
        order(box_, &control::Order::Start)?;
        let wall = wall_ms(plan, args).map(Duration::from_millis);
        // The limit is the command's: a start that takes long on a busy machine is not charged to it.
        box_.deadline = wall.map(|wall| Instant::now() + wall + START_ROOM);
        let mut compared = None;
        loop {
            match box_.next() {
                Step::Forked => watch(box_, args)?,
                Step::Started => {
                    box_.deadline = wall.map(|wall| Instant::now() + wall);
                    self.record_launch(box_, out, args)?;
                    sys::shed_code();
                }
                Step::Refused(refusal) => return Err(refusal),
                Step::Inside(data) => receipts::record_inside(box_, out, &data),
                // While the kernel takes the box apart.
                Step::Quiet => compared = Some(watched.before.compare()),
                Step::Over => break,
            }
        }
        box_.terminal.take_back();
        box_.degraded.extend(box_.tracer.take().and_then(Tracer::finish));
        self.record_end(box_, out, watched, compared);
        Ok(())
    }

    /// The directory of journals, where there is anything to note.
    fn journals(&self, args: &Args) -> Result<Option<Journals>, Refusal> {
        let watched = &self.loaded.plan.persistence;
        match &args.state_home {
            None if watched.iter().any(|one| one.quarantine.is_some()) => {
                Err(Refusal::new("usage", "--state-home").detail("got none, expected the place of quarantine"))
            }
            Some(home) if !watched.is_empty() => Journals::open(home).map(Some).map_err(|e| unnoted(&e)),
            _ => Ok(None),
        }
    }

    /// Settles what killed boxes left, and says that this one has its roots.
    fn open_journal<'a>(
        &self,
        journals: Option<&'a Journals>,
        out: &Out,
    ) -> Result<(Option<Journal<'a>>, Settled), Refusal> {
        let persistence = &self.loaded.plan.persistence;
        let Some(journals) = journals else { return Ok((None, Settled::default())) };
        let settled = receipts::settle(journals, persistence, out).map_err(|e| unnoted(&e))?;
        let journal = journals.begin(&out.run_id, persistence).map_err(|e| unnoted(&e))?;
        Ok((Some(journal), settled))
    }

    /// What the write roots hold, before the command runs: noted where a crash leaves it.
    fn note_roots<'a>(&self, mut journal: Option<Journal<'a>>, settled: Settled) -> Result<Watched<'a>, Refusal> {
        let before = persist::snapshot(&self.loaded.plan.persistence).map_err(|e| unwatched(&e))?;
        if let Some(journal) = &mut journal {
            journal.record(&before).map_err(|e| unnoted(&e))?;
        }
        Ok(Watched { before, journal, settled })
    }
}

/// How long a command with a wall clock may take to start.
const START_ROOM: Duration = Duration::from_secs(10);

/// P0's descriptors that came from the caller.
fn handed_over(out: &Out, args: &Args) -> impl Iterator<Item = RawFd> {
    let spool = out.spool.as_ref().map(Spool::descriptor);
    [out.report.descriptor(), spool, args.caller_pidfd, args.trace_fd].into_iter().flatten()
}

/// What the child's copy takes with it.
struct Spawn<'a> {
    outer_fds: Vec<RawFd>,
    inner: OwnedFd,
    errors_in: OwnedFd,
    prepared: Prepared,
    argv: &'a [CString],
    env: Vec<CString>,
    box_json: &'a str,
    wall_ms: Option<u64>,
    traced: bool,
}

/// A name that is no pattern is the plan's fault, everything else the tree's.
fn unwatched(error: &std::io::Error) -> Refusal {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Refusal::new("plan_invalid", "persistence").detail(error.to_string()),
        _ => Refusal::new("source_denied", "write root").io(error),
    }
}

/// Takes hold of the command before it runs, where the caller asked to see what it uses.
fn watch(box_: &mut Supervisor, args: &Args) -> Result<(), Refusal> {
    let Some(file) = args.trace_fd else { return Ok(()) };
    box_.tracer = Some(trace::start(file, box_.command)?);
    order(box_, &control::Order::Traced)
}

fn unnoted(error: &std::io::Error) -> Refusal {
    Refusal::new("journal_failed", "write roots").io(error)
}

fn order(box_: &mut Supervisor, order: &control::Order) -> Result<(), Refusal> {
    let done = control::send_order(box_.control.as_raw_fd(), order);
    sent(box_, done)
}

fn sent(box_: &mut Supervisor, done: std::io::Result<()>) -> Result<(), Refusal> {
    done.map_err(|e| why_gone(box_, Refusal::new("fork_failed", "P1").io(&e)))
}

/// A P1 that is gone has written why: its word counts more than what we ran into.
/// One that lives is ended first, or the wait for its word would not end.
fn why_gone(box_: &mut Supervisor, otherwise: Refusal) -> Refusal {
    box_.end(Outcome::Killed);
    match box_.next() {
        Step::Refused(said) if said.errno.is_some() || !said.is("fork_failed") => said,
        _ => otherwise,
    }
}

fn kill_and_reap(init: libc::pid_t) {
    // SAFETY: P1 is our unreaped child. Its death takes every process of the box along.
    unsafe {
        libc::kill(init, libc::SIGKILL);
        libc::waitpid(init, std::ptr::null_mut(), 0);
    }
}
