//! P0's straight line: read, check, start, supervise, record, end alike.
//!
//! Owns the order on the outside and the exit status. A launch record is written
//! only after exec has succeeded; a refused launch writes a refusal and nothing
//! with a tier in it.

use std::ffi::{c_char, CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::args::{self, Args};
use crate::init::{self, Start};
use crate::inside::Inside;
use crate::nest::Entrance;
use crate::plan::{self, Backend, Ids, Loaded, Plan};
use crate::promises::{self, Evaluation, Tier};
use crate::report::{self, Refusal, Report};
use crate::spool::{Appended, Spool};
use crate::steps::env::{self, Filtered};
use crate::steps::mounts::Prepared;
use crate::steps::{caps, landlock, limits, userns};
use crate::supervise::{self, Step, Supervisor};
use crate::terminal::Terminal;
use crate::{control, cover, facts, persist, sys, ulid, version};

const REFUSED: i32 = 125;

/// The strings that the kernel put on the stack: arguments and environment.
#[derive(Clone, Copy)]
pub struct Block {
    pub argv: *const *const c_char,
    pub envp: *const *const c_char,
}

impl Block {
    fn environ(&self) -> Vec<env::Pair> {
        self.strings(self.envp).into_iter().map(|item| split_item(item.to_bytes())).collect()
    }

    fn strings(&self, list: *const *const c_char) -> Vec<&'static CStr> {
        // SAFETY: the kernel ends the list with a null pointer and every string with a zero.
        let end = |i: &usize| unsafe { !(*list.add(*i)).is_null() };
        // SAFETY: as above; the block lives as long as the process.
        (0..).take_while(end).map(|i| unsafe { CStr::from_ptr(*list.add(i)) }).collect()
    }

    /// Zeroes all of it in this process: /proc/1/environ and cmdline read it.
    fn wipe(&self) {
        for list in [self.argv, self.envp] {
            for text in self.strings(list) {
                let length = text.to_bytes().len();
                // SAFETY: the kernel maps these bytes writable and nothing of ours points
                // into them any more: argv and environment were copied.
                unsafe { std::ptr::write_bytes(text.as_ptr().cast_mut(), 0, length) };
            }
        }
    }
}

fn split_item(item: &[u8]) -> env::Pair {
    let at = item.iter().position(|b| *b == b'=').unwrap_or(item.len());
    (item[..at].to_vec(), item.get(at + 1..).unwrap_or_default().to_vec())
}

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
    let spool = match args.spool.as_deref().map(|path| Spool::open(Path::new(path))).transpose() {
        Ok(spool) => spool,
        Err(e) => {
            return refuse(&Refusal::new("spool_failed", args.spool.unwrap_or_default()).io(&e), &run_id, &report, None)
        }
    };
    let out = Out { run_id, report, spool };
    match Session::open(&args, &block, start).and_then(|session| session.start(&out, &args, &block)) {
        Ok(code) => code,
        Err(refusal) => refuse(&refusal, &out.run_id, &out.report, out.spool.as_ref()),
    }
}

/// Inherited descriptors must not leak into the command by accident.
fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller passed this descriptor to us by number; F_SETFD takes an integer.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(fd)
    }
}

fn refuse(refusal: &Refusal, run_id: &str, report: &Report, spool: Option<&Spool>) -> i32 {
    let record = refusal.record(run_id);
    let json = report::to_json(&record).unwrap_or_default();
    let told = report.send_json(&json);
    if let Some(spool) = spool {
        // The launch is refused already; the line on stderr stays the answer.
        let _ = spool.append(&json);
    }
    refusal.print();
    if let Err(lost) = told {
        lost.print();
    }
    match refusal.code {
        "not_found" => 127,
        "exec_failed" => 126,
        _ => REFUSED,
    }
}

/// Where records go.
struct Out {
    run_id: String,
    report: Report,
    spool: Option<Spool>,
}

/// Everything that is known before the first process is made.
struct Session {
    loaded: Loaded,
    env: Filtered,
    cwd: String,
    start: Start,
    evaluation: Evaluation,
    home: &'static str,
    began: Instant,
}

impl Session {
    fn open(args: &Args, block: &Block, start: Start) -> Result<Session, Refusal> {
        let began = Instant::now();
        let mut loaded = match (args.plan_fd, &args.plan, &args.plan_store) {
            (Some(fd), ..) => plan::from_fd(fd, &args.binds)?,
            (None, Some(digest), Some(dir)) => plan::from_store(dir, digest, &args.binds)?,
            _ => return Err(Refusal::new("usage", "--plan")),
        };
        check_words(&loaded.plan)?;
        let (evaluation, _) = evaluate(&loaded.plan, false)?;
        let env = environment(&loaded.plan, args, block)?;
        let home = facts::home(&loaded.plan);
        let cwd = args.cwd.clone().unwrap_or_else(|| loaded.plan.cwd.clone());
        cover::add_rows(&mut loaded.plan, &cwd)?;
        Ok(Session { loaded, env, cwd, start, evaluation, home, began })
    }

    fn start(mut self, out: &Out, args: &Args, block: &Block) -> Result<i32, Refusal> {
        let argv = args.argv.clone();
        let box_json = self.box_json(out);
        let fail = |what: &'static str| move |e: std::io::Error| Refusal::new("fork_failed", what).io(&e);
        caps::join_keyring()?;
        let (outer, inner) = control::pair().map_err(fail("control socket"))?;
        let (errors, errors_in) = sys::pipe().map_err(fail("pipe"))?;
        let signals = sys::signal_fd().map_err(fail("signalfd"))?;
        let prepared = userns::prepare(&self.loaded.plan)?;
        let mut terminal = Terminal::open();
        let env = std::mem::take(&mut self.env.env);
        let spawn = Spawn {
            inner,
            errors_in,
            prepared,
            argv: &argv,
            env,
            box_json: &box_json,
            wall_ms: wall_ms(&self.loaded.plan, args),
        };
        let init = self.fork(spawn, terminal.hand_over_at_start(), block)?;
        let mut supervisor = Supervisor {
            init,
            control: outer,
            errors: Some(errors),
            signals,
            terminal,
            caller: args.caller_pidfd,
            deadline: None,
            entrance: None,
            guards: &self.loaded.plan.guards,
            guard_lost: self.loaded.plan.guard_lost,
            inside: Inside::default(),
            command: 0,
            snapshot: false,
            status: None,
            stop_asked: false,
            ended: None,
            lost: vec![],
            degraded: vec![],
        };
        match self.drive(&mut supervisor, out, args) {
            Ok(()) => Ok(finish(&supervisor)),
            Err(refusal) => {
                kill_and_reap(init);
                supervisor.terminal.take_back();
                Err(refusal)
            }
        }
    }

    /// Makes P1 with all its namespaces in one call.
    fn fork(&self, spawn: Spawn, terminal: Option<&OwnedFd>, block: &Block) -> Result<libc::pid_t, Refusal> {
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
            return Ok(pid);
        }
        let launch = init::Launch {
            plan: &self.loaded.plan,
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
            ids,
        };
        init::run(launch, || block.wipe())
    }

    /// From the first order to P1 until every process is dead.
    fn drive(&self, box_: &mut Supervisor, out: &Out, args: &Args) -> Result<(), Refusal> {
        let plan = &self.loaded.plan;
        userns::map_box(box_.init, plan.ids)?;
        order(box_, &control::Order::Build)?;
        if !plan.guards.is_empty() {
            let way = Entrance::open(box_.init).map_err(|e| Refusal::new("guard_denied", "entrance").io(&e))?;
            box_.entrance = Some(way);
        }
        let before =
            persist::snapshot(&plan.persistence).map_err(|e| Refusal::new("source_denied", "write root").io(&e))?;
        if let Some(spool) = &out.spool {
            // Found out before the command runs, not after.
            spool.ready().map_err(|e| Refusal::new("spool_failed", "spool").io(&e))?;
        }
        order(box_, &control::Order::Start)?;
        box_.deadline = wall_ms(plan, args).map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            match box_.next() {
                Step::Started => self.record_launch(box_, out, args)?,
                Step::Refused(refusal) => return Err(refusal),
                Step::Inside(data) => record_inside(box_, out, &data),
                Step::Over => break,
            }
        }
        box_.terminal.take_back();
        self.record_end(box_, out, &before);
        Ok(())
    }

    fn box_json(&self, out: &Out) -> String {
        let plan = &self.loaded.plan;
        let mut record = plan.record.clone();
        for (key, value) in [
            ("schema", "stockade.box.v1".into()),
            ("run_id", out.run_id.clone()),
            ("plan", self.loaded.digest.clone()),
            ("backend", backend(plan).to_string()),
            ("requested_tier", plan.requested_tier.clone()),
            ("effective_tier", self.evaluation.effective_tier.name().to_string()),
        ] {
            record.insert(key.to_string(), value.into());
        }
        serde_json::Value::Object(record).to_string()
    }

    fn record_launch(&self, box_: &Supervisor, out: &Out, args: &Args) -> Result<(), Refusal> {
        let plan = &self.loaded.plan;
        let (evaluation, mechanisms) = evaluate(plan, box_.snapshot)?;
        let record = report::Launch {
            schema: report::SCHEMA,
            record: "launch",
            run_id: out.run_id.clone(),
            ts: ulid::now(),
            plan: self.loaded.digest.clone(),
            backend: backend(plan).to_string(),
            kernel: version::kernel(),
            landlock_abi: landlock::kernel_abi() as u32,
            caller: plan.caller.clone(),
            requested_tier: requested(plan)?,
            effective_tier: evaluation.effective_tier,
            profiles: plan.profiles.clone(),
            promises: evaluation.states.clone(),
            missing: evaluation.missing.clone(),
            would_be: evaluation.would_be,
            kept: evaluation.kept,
            of: evaluation.of,
            mechanisms,
            home: if box_.snapshot { "snapshot" } else { self.home },
            net: if plan.net == plan::Net::None { "none" } else { "host" }.to_string(),
            env_kept: self.env.kept.clone(),
            env_dropped: self.env.dropped.clone(),
            limits: limits::notes(&plan.limits),
            argv0: report::show(args.argv[0].to_bytes()),
            cwd: self.cwd.clone(),
            supervisor: report::Supervisor { pid: std::process::id() as i32, start_ticks: start_ticks() },
            command_pid: box_.command,
            origin: "outside",
        };
        let json = report::to_json(&record)?;
        match out.spool.as_ref().map(|spool| spool.append(&json)) {
            Some(Err(e)) => return Err(Refusal::new("spool_failed", "launch record").io(&e)),
            Some(Ok(Appended::Degraded(what))) => {
                return Err(Refusal::new("spool_failed", "launch record").detail(what))
            }
            _ => {}
        }
        // Last: whoever reads a launch record may rely on it.
        out.report.send_json(&json)
    }

    fn record_end(&self, box_: &mut Supervisor, out: &Out, before: &persist::Snapshot) {
        let compared = before.compare();
        let mut degraded = std::mem::take(&mut box_.degraded);
        degraded.extend(compared.degraded);
        let persistence = clip(compared.changes, "persistence", &mut degraded);
        box_.lost.dedup();
        let guard_lost = clip(box_.lost.clone(), "guard_lost", &mut degraded);
        let degraded = clip(degraded, "degraded", &mut vec![]);
        let (exit_code, signal) = ends(box_);
        let (cpu_ms, max_rss_bytes) = usage();
        let record = report::End {
            schema: report::SCHEMA,
            record: "end",
            run_id: out.run_id.clone(),
            ts: ulid::now(),
            outcome: outcome(box_, signal),
            exit_code,
            signal,
            limit_hit: supervise::limit_hit(box_.ended, signal),
            wall_ms: self.began.elapsed().as_millis() as u64,
            cpu_ms,
            max_rss_bytes,
            persistence,
            guard_lost,
            discarded: 0,
            net_denied: vec![],
            inside: box_.inside.received,
            degraded,
        };
        let json = report::to_json(&record).unwrap_or_default();
        let spooled = out.spool.as_ref().map_or(Ok(Appended::Whole), |spool| spool.append(&json));
        if !matches!(spooled, Ok(Appended::Whole)) {
            eprintln!("stockade: audit degraded: the end record of {} could not be written", out.run_id);
        }
        // The reader may have gone once it knew the status; the command has run.
        let _ = out.report.send_json(&json);
    }
}

/// The end record must fit a pipe that nobody reads before the status is known:
/// lists are cut, and the record says so.
fn clip<T: serde::Serialize>(mut list: Vec<T>, name: &str, degraded: &mut Vec<String>) -> Vec<T> {
    let mut room = 16usize << 10;
    let fits = list.iter().take_while(|item| {
        let size = serde_json::to_string(item).map_or(usize::MAX, |json| json.len() + 1);
        room.checked_sub(size).inspect(|left| room = *left).is_some()
    });
    let keep = fits.count();
    if keep < list.len() {
        degraded.push(format!("{name}: {} more", list.len() - keep));
        list.truncate(keep);
    }
    list
}

/// What the child's copy takes with it.
struct Spawn<'a> {
    inner: OwnedFd,
    errors_in: OwnedFd,
    prepared: Prepared,
    argv: &'a [CString],
    env: Vec<CString>,
    box_json: &'a str,
    wall_ms: Option<u64>,
}

/// The shorter of the plan's wall limit and the caller's.
fn wall_ms(plan: &Plan, args: &Args) -> Option<u64> {
    [args.timeout_ms, plan.limits.wall_ms].into_iter().flatten().min()
}

fn backend(plan: &Plan) -> &'static str {
    match plan.backend {
        Backend::Namespaces => "namespaces",
    }
}

fn requested(plan: &Plan) -> Result<Tier, Refusal> {
    let tier = Tier::parse(&plan.requested_tier).filter(|tier| *tier != Tier::Off);
    tier.ok_or_else(|| Refusal::new("plan_invalid", "requested_tier").detail(format!("got {:?}", plan.requested_tier)))
}

fn check_words(plan: &Plan) -> Result<(), Refusal> {
    let invalid = |field: &'static str| move |e: String| Refusal::new("plan_invalid", field).detail(e);
    promises::check(&plan.promises).map_err(invalid("promises"))?;
    persist::check(&plan.persistence).map_err(invalid("persistence"))?;
    // SAFETY: no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if matches!(plan.ids, Ids::Shifted { .. }) && !root {
        return Err(Refusal::new("plan_invalid", "ids").detail("shifted ids are for a root caller"));
    }
    Ok(())
}

/// Refuses before anything is made when the plan itself promises too little.
fn evaluate(plan: &Plan, snapshot: bool) -> Result<(Evaluation, Vec<String>), Refusal> {
    let facts = facts::of(plan, snapshot);
    let evaluation = promises::evaluate(&plan.promises, &facts, requested(plan)?, &plan.accept);
    if !evaluation.accepted {
        let detail = format!("got tier {}, missing {}", evaluation.effective_tier.name(), evaluation.missing.join(" "));
        return Err(Refusal::new("promise_not_kept", plan.requested_tier.as_str()).detail(detail));
    }
    Ok((evaluation, facts.names()))
}

fn environment(plan: &Plan, args: &Args, block: &Block) -> Result<Filtered, Refusal> {
    let invalid = |e: env::EnvError| Refusal::new("env_invalid", "environment").detail(e.to_string());
    let given = match args.setenv_fd {
        Some(fd) => env::parse_items(&read_all(adopt(fd))?).map_err(invalid)?,
        None => vec![],
    };
    env::filter(&plan.env, &block.environ(), &given).map_err(invalid)
}

fn read_all(fd: OwnedFd) -> Result<Vec<u8>, Refusal> {
    use std::io::{Read, Seek};
    let mut file = std::fs::File::from(fd);
    // A memfd is left at its end by its writer; a pipe cannot seek and need not.
    let _ = file.rewind();
    let mut bytes = vec![];
    file.read_to_end(&mut bytes).map_err(|e| Refusal::new("env_invalid", "--setenv-fd").io(&e))?;
    Ok(bytes)
}

fn order(box_: &mut Supervisor, order: &control::Order) -> Result<(), Refusal> {
    // A P1 that is gone has written why; the pipe is read first.
    match control::send_order(box_.control.as_raw_fd(), order) {
        Ok(()) => Ok(()),
        Err(e) => match box_.next() {
            Step::Refused(refusal) => Err(refusal),
            _ => Err(Refusal::new("fork_failed", "P1").io(&e)),
        },
    }
}

fn record_inside(box_: &mut Supervisor, out: &Out, data: &[u8]) {
    let record = report::Inside::stamp(&out.run_id, data);
    let written = report::to_json(&record).ok().and_then(|json| Some(out.spool.as_ref()?.append(&json)));
    if matches!(written, Some(Err(_) | Ok(Appended::Degraded(_)))) && box_.degraded.is_empty() {
        box_.degraded.push("inside record lost".to_string());
    }
}

fn kill_and_reap(init: libc::pid_t) {
    // SAFETY: P1 is our unreaped child. Its death takes every process of the box along.
    unsafe {
        libc::kill(init, libc::SIGKILL);
        libc::waitpid(init, std::ptr::null_mut(), 0);
    }
}

/// The command's exit code or signal, as the receipt and our own end give it.
fn ends(box_: &Supervisor) -> (Option<i32>, Option<i32>) {
    // Without a status the box was killed from outside, P1 first.
    let status = box_.status.unwrap_or(libc::SIGKILL);
    if libc::WIFEXITED(status) {
        return (Some(libc::WEXITSTATUS(status)), None);
    }
    (None, Some(libc::WTERMSIG(status)))
}

fn outcome(box_: &Supervisor, signal: Option<i32>) -> report::Outcome {
    match (box_.ended, signal) {
        (Some(why), _) => why,
        (None, Some(libc::SIGXCPU)) => report::Outcome::Limit,
        (None, Some(_)) => report::Outcome::Signalled,
        (None, None) => report::Outcome::Exited,
    }
}

fn usage() -> (u64, u64) {
    // SAFETY: rusage is plain data that lives through the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ms = |t: libc::timeval| t.tv_sec as u64 * 1000 + t.tv_usec as u64 / 1000;
    (ms(usage.ru_utime) + ms(usage.ru_stime), usage.ru_maxrss as u64 * 1024)
}

/// proc_pid_stat(5), field 22: tells this process from a later one of the same pid.
fn start_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().nth(19).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Ends as the command did: same code, or the same signal raised on ourselves.
fn finish(box_: &Supervisor) -> i32 {
    match box_.ended {
        Some(report::Outcome::TimedOut) => return 124,
        Some(report::Outcome::GuardLost) => {
            eprintln!("stockade: ended: guard_lost: {}", report::show(box_.lost.join(" ").as_bytes()));
            return REFUSED;
        }
        _ => {}
    }
    match ends(box_) {
        (Some(code), _) => code,
        (None, signal) => raise(signal.unwrap_or(libc::SIGKILL)),
    }
}

/// No core of ours: it would hold the caller's environment.
fn raise(signal: i32) -> i32 {
    // SAFETY: sets are plain data; raising ends the process for every signal that ended the command.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
    }
    128 + signal
}
