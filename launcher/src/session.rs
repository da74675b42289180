//! What is known before the first process is made.
//!
//! Owns reading the plan, the environment filter and the question whether the
//! plan promises what was requested: if not, nothing is made at all.

use std::ffi::{c_char, CStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::alone;
use crate::args::Args;
use crate::clock;
use crate::copyback::{self, Held};
use crate::facts::{self, Seen};
use crate::init::Start;
use crate::nested::ring::{self, Ring};
use crate::nested::Inner;
use crate::plan::{self, Backend, Ids, Loaded, Net, Plan};
use crate::promises::{self, Evaluation, FactSet, Tier};
use crate::receipts::Out;
use crate::report::{Refusal, Standing};
use crate::steps::env::{self, Filtered};
use crate::steps::{caps, exec, seccomp};
use crate::{sys, trace};

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

    /// Tells whether a program of that name is found out here, for a command that the box does not have.
    pub fn finds(&self, argv0: &CStr) -> bool {
        let env: Vec<_> = self.strings(self.envp).into_iter().map(CStr::to_owned).collect();
        exec::is_here(argv0, &env)
    }

    fn strings(&self, list: *const *const c_char) -> Vec<&'static CStr> {
        // SAFETY: the kernel ends the list with a null pointer and every string with a zero.
        let end = |i: &usize| unsafe { !(*list.add(*i)).is_null() };
        // SAFETY: as above; the block lives as long as the process.
        (0..).take_while(end).map(|i| unsafe { CStr::from_ptr(*list.add(i)) }).collect()
    }

    /// Zeroes all of it in this process: /proc/1/environ and cmdline read it.
    pub fn wipe(&self) {
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

pub fn split_item(item: &[u8]) -> env::Pair {
    let at = item.iter().position(|b| *b == b'=').unwrap_or(item.len());
    (item[..at].to_vec(), item.get(at + 1..).unwrap_or_default().to_vec())
}

/// Inherited descriptors must not leak into the command by accident.
pub fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller passed this descriptor to us by number; F_SETFD takes an integer.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Everything that is known before the first process is made.
pub struct Session {
    pub loaded: Loaded,
    pub env: Filtered,
    pub cwd: String,
    /// What is known of the box, whatever its plan says.
    pub evaluation: Evaluation,
    pub seen: Seen,
    pub home: &'static str,
    pub began: Instant,
    pub state_home: Option<String>,
    /// Files of the host that are copied in, and back at the end.
    pub copies: Vec<Held>,
    /// Of a box inside another.
    pub inner: Option<Inner>,
}

/// What the environment of the command is made of.
pub struct Given {
    pub environ: Vec<env::Pair>,
    pub set: Vec<env::Pair>,
}

impl Session {
    pub fn open(
        args: &Args,
        inner: Option<Inner>,
        given: impl FnOnce(&Args) -> Result<Given, Refusal>,
        out: &Out,
    ) -> Result<Session, Refusal> {
        let ring = inner.as_ref().map(|inner| &inner.ring);
        let began = Instant::now();
        let mut loaded = match (args.plan_fd, &args.plan, &args.plan_store) {
            (Some(fd), ..) => plan::from_fd(fd, &args.binds)?,
            (None, Some(digest), Some(dir)) => plan::from_store(dir, digest, &args.binds)?,
            _ => return Err(Refusal::new("usage", "--plan")),
        };
        check_inherited(&loaded.plan, args)?;
        if let Some(ring) = ring {
            ring.bound(&mut loaded.plan);
        }
        if let Some(wall) = wall_ms(&loaded.plan, args).map(Duration::from_millis) {
            let to = clock::Told { run_id: out.run_id.clone(), report: args.report_fd, spool: args.spool.clone() };
            clock::arm(clock::limit(began, wall), loaded.plan.mounts.len(), to)?;
        }
        check_words(&loaded.plan)?;
        ring.map(|_| ring::check(&loaded.plan)).transpose()?;
        args.trace_fd.map(trace::check).transpose()?;
        check_options(&loaded.plan, args)?;
        let seen = match loaded.plan.backend {
            Backend::Namespaces => Seen::default(),
            Backend::Landlock => {
                alone::check_caller()?;
                Seen { keyring: caps::join_keyring_if_reachable()?, ..Seen::default() }
            }
        };
        let (told, _) = evaluate(&loaded.plan, ring, seen)?;
        let evaluation = ring.map_or(Ok(told), |ring| known(&loaded.plan, ring, seen))?;
        let env = environment(&loaded.plan, &given(args)?)?;
        let home = facts::home(&loaded.plan);
        let cwd = args.cwd.clone().unwrap_or_else(|| loaded.plan.cwd.clone());
        if args.state_home.is_none() && !loaded.plan.copyback.is_empty() {
            return Err(
                Refusal::new("usage", "--state-home").detail("got none, expected the place of what cannot go back")
            );
        }
        let copies = copyback::hold(&loaded.plan)?;
        let state_home = args.state_home.clone();
        Ok(Session { loaded, env, cwd, evaluation, seen, home, began, state_home, copies, inner })
    }

    /// Inside a box the request's word for it counts for nothing.
    pub fn standing(&self) -> Standing {
        self.around().map_or_else(|| Standing::of(&self.loaded.plan.record), |ring| Standing::inside(ring.tier))
    }

    /// The box around, where there is one.
    pub fn around(&self) -> Option<&Ring> {
        self.inner.as_ref().map(|inner| &inner.ring)
    }

    /// What this box keeps around those inside it.
    pub fn ring(&self, run_id: &str, snapshot: bool) -> Result<Ring, Refusal> {
        let seen = Seen { snapshot, ..self.seen };
        let plan = &self.loaded.plan;
        let (told, _) = evaluate(plan, self.around(), seen)?;
        let known = self.around().map(|ring| known(plan, ring, seen)).transpose()?;
        Ok(Ring::of(plan, self.around(), &told, known.as_ref().unwrap_or(&told), run_id, seen))
    }

    /// Whoever reads it relies on it: of a plan that was made inside a box nothing is repeated.
    pub fn box_json(&self, run_id: &str) -> String {
        let plan = &self.loaded.plan;
        let mut record = self.around().map_or_else(|| plan.record.clone(), |ring| self.record_inside(ring));
        for (key, value) in [
            ("schema", "stockade.box.v1".into()),
            ("run_id", run_id.to_string()),
            ("plan", self.loaded.digest.clone()),
            ("backend", backend(plan).to_string()),
            ("requested_tier", plan.requested_tier.clone()),
            ("effective_tier", self.evaluation.effective_tier.name().to_string()),
        ] {
            record.insert(key.to_string(), value.into());
        }
        let around = self.around().map(|ring| ring.chain.as_slice()).unwrap_or_default();
        let chain: Vec<&str> = [run_id].into_iter().chain(around.iter().map(String::as_str)).collect();
        record.insert("chain".to_string(), chain.into());
        serde_json::Value::Object(record).to_string()
    }

    /// At most what the outermost box may do, and where this one stands.
    fn record_inside(&self, ring: &Ring) -> serde_json::Map<String, serde_json::Value> {
        let mut record = ring.allowed.clone();
        record.insert("net".to_string(), self.net().into());
        if let Ok(serde_json::Value::Object(standing)) = serde_json::to_value(self.standing()) {
            record.extend(standing);
        }
        record
    }

    /// A box without a network has none to give.
    pub fn net(&self) -> &'static str {
        let around = self.around().map_or(Net::Host, |ring| ring.net);
        if around == Net::None || self.loaded.plan.net == Net::None {
            "none"
        } else {
            "host"
        }
    }
}

/// The shorter of the plan's wall limit and the caller's.
pub fn wall_ms(plan: &Plan, args: &Args) -> Option<u64> {
    [args.timeout_ms, plan.limits.wall_ms].into_iter().flatten().min()
}

pub fn backend(plan: &Plan) -> &'static str {
    match plan.backend {
        Backend::Namespaces => "namespaces",
        Backend::Landlock => "landlock",
    }
}

pub fn requested(plan: &Plan) -> Result<Tier, Refusal> {
    let tier = Tier::parse(&plan.requested_tier).filter(|tier| *tier != Tier::Off);
    tier.ok_or_else(|| Refusal::new("plan_invalid", "requested_tier").detail(format!("got {:?}", plan.requested_tier)))
}

/// A descriptor of the plan that the caller did not hand over would be one of
/// ours: the control socket, say. Looked at before anything of ours is opened.
fn check_inherited(plan: &Plan, args: &Args) -> Result<(), Refusal> {
    let ours = [args.plan_fd, args.report_fd, args.setenv_fd, args.go_fd, args.caller_pidfd, args.trace_fd];
    for fd in &plan.fds {
        let fail = |detail: &str| Refusal::new("fds_denied", format!("descriptor {fd}")).detail(detail);
        if ours.contains(&Some(*fd)) {
            return Err(fail("got one that is the launcher's own by its options"));
        }
        // SAFETY: F_GETFD takes no pointer.
        if unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0 {
            return Err(fail("got one that is not open").errno(libc::EBADF));
        }
    }
    Ok(())
}

/// What this backend does not do, and what only it does.
fn check_options(plan: &Plan, args: &Args) -> Result<(), Refusal> {
    let alone = plan.backend == Backend::Landlock;
    if alone && args.trace_fd.is_some() {
        return Err(Refusal::new("trace_denied", "command").detail("a box without namespaces is not watched"));
    }
    if args.tighten && !alone {
        return Err(Refusal::new("usage", "--tighten").detail("got a plan of backend namespaces, expected landlock"));
    }
    Ok(())
}

fn check_words(plan: &Plan) -> Result<(), Refusal> {
    let invalid = |field: &'static str| move |e: String| Refusal::new("plan_invalid", field).detail(e);
    promises::check(&plan.promises).map_err(invalid("promises"))?;
    // Those of the other backend are checked with the rest of its plan.
    if plan.backend == Backend::Namespaces && !seccomp::confines_commands(&plan.seccomp.filter) {
        return Err(invalid("seccomp.filter")(format!("got {:?}", plan.seccomp.filter)));
    }
    // SAFETY: no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if matches!(plan.ids, Ids::Shifted { .. }) && !root {
        return Err(Refusal::new("plan_invalid", "ids").detail("shifted ids are for a root caller"));
    }
    Ok(())
}

/// Refuses before anything is made when the plan itself promises too little.
pub fn evaluate(plan: &Plan, ring: Option<&Ring>, seen: Seen) -> Result<(Evaluation, Vec<String>), Refusal> {
    let facts = facts(plan, ring, seen);
    let narrowed = ring.map(|ring| ring.promises(plan));
    let rows = narrowed.as_deref().unwrap_or(&plan.promises);
    let mut evaluation = promises::evaluate(rows, &facts, requested(plan)?, &plan.accept);
    ring.inspect(|ring| ring.mark(&mut evaluation.states));
    if !evaluation.accepted {
        let detail = format!("got tier {}, missing {}", evaluation.effective_tier.name(), evaluation.missing.join(" "));
        return Err(Refusal::new("promise_not_kept", plan.requested_tier.as_str()).detail(detail));
    }
    Ok((evaluation, facts.names()))
}

/// What holds inside `ring` even if the plan says nothing true of its mounts; `would_be` believes it.
pub fn known(plan: &Plan, ring: &Ring, seen: Seen) -> Result<Evaluation, Refusal> {
    let facts = facts(plan, Some(ring), seen);
    let of = |rows: &[plan::PlanPromise]| Ok(promises::evaluate(rows, &facts, requested(plan)?, &plan.accept));
    let would_be = of(&ring.promises(plan))?.effective_tier;
    Ok(Evaluation { would_be, ..of(&ring.known(plan))? })
}

/// What was proved, that of the box around included: its network and rules hold here, too.
pub fn facts(plan: &Plan, ring: Option<&Ring>, seen: Seen) -> FactSet {
    let mut facts = facts::of(plan, seen);
    let inherited = ["netns", "landlock_fs", "landlock_signal", "landlock_abstract"];
    let held = inherited.into_iter().filter(|fact| ring.is_some_and(|ring| ring.facts.has(fact)));
    held.for_each(|fact| facts.add(fact));
    facts
}

impl Given {
    /// The process's own environment, and what came by descriptor.
    pub fn own(args: &Args, block: &Block, start: &Start) -> Result<Given, Refusal> {
        let set = match args.setenv_fd {
            Some(fd) => env::parse_items(&read_all(adopt(fd), start)?).map_err(env_invalid)?,
            None => vec![],
        };
        if let Some(fd) = args.go_fd {
            wait_for_go(adopt(fd), args.caller_pidfd, start)?;
        }
        Ok(Given { environ: block.environ(), set })
    }
}

/// The end of the pipe is no word for it: the caller is gone then, or has changed its mind. Nor is the pipe waited
/// for without it, because a fork of the caller's may hold the other end.
fn wait_for_go(fd: OwnedFd, caller: Option<RawFd>, start: &Start) -> Result<(), Refusal> {
    let gone = || Refusal::new("caller_gone", "--go-fd").detail("got its end, expected a byte");
    let held = start.let_end();
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(fd.as_raw_fd()), poll(caller.unwrap_or(-1))];
    // SAFETY: the array lives through the call.
    while unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } < 0 {}
    let mut byte = 0u8;
    // SAFETY: one byte of ours. What the caller wrote before it went is still there, and counts.
    let got = if fds[0].revents == 0 { 0 } else { unsafe { libc::read(fd.as_raw_fd(), (&raw mut byte).cast(), 1) } };
    sys::set_mask(&held);
    if got == 1 {
        Ok(())
    } else {
        Err(gone())
    }
}

fn env_invalid(error: env::EnvError) -> Refusal {
    Refusal::new("env_invalid", "environment").detail(error.to_string())
}

fn environment(plan: &Plan, given: &Given) -> Result<Filtered, Refusal> {
    env::filter(&plan.env, &given.environ, &given.set).map_err(env_invalid)
}

fn read_all(fd: OwnedFd, start: &Start) -> Result<Vec<u8>, Refusal> {
    use std::io::{Read, Seek};
    let mut file = std::fs::File::from(fd);
    // A memfd is left at its end by its writer; a pipe cannot seek and need not.
    let waits = file.rewind().is_err();
    // Its writer may take any time, and no box exists: a signal ends this process like any other.
    let held = waits.then(|| start.let_end());
    let mut bytes = vec![];
    let read = file.read_to_end(&mut bytes).map_err(|e| Refusal::new("env_invalid", "--setenv-fd").io(&e));
    if let Some(mask) = held {
        sys::set_mask(&mask);
    }
    read.map(|_| bytes)
}
