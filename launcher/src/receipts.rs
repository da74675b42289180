//! Writing the records of one launch, to the report descriptor and the spool.
//!
//! Owns when which record is written. A refusal never carries a tier; a launch
//! record goes to the spool first, so that whoever reads it may rely on it.
//! Next: receipts/room.rs (what is cut), receipts/settle.rs (boxes that were killed).

mod room;
mod settle;

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::args::Args;
use crate::copyback::{self, Aside, Copied};
use crate::ending;
use crate::nested::wire;
use crate::persist::journal::Journal;
use crate::persist::{manifest, quarantine, Compared, Snapshot};
use crate::report::{self, Refusal, Report};
use crate::session::{self, Session};
use crate::spool::{Appended, Spool};
use crate::steps::{landlock, limits};
use crate::supervise::Supervisor;
use crate::{discard, facts, sys, ulid, version};

use room::Room;
pub use settle::{settle, Settled};

pub const REFUSED: i32 = 125;

/// What is known of the write roots from before the command ran.
pub struct Watched<'a> {
    pub before: Snapshot,
    pub journal: Option<Journal<'a>>,
}

/// Where records go, and what they have to say besides this launch.
pub struct Out {
    pub run_id: String,
    pub report: Report,
    pub spool: Option<Spool>,
    /// Of a box inside another: its records go to the supervisor around.
    pub uplink: Option<OwnedFd>,
    /// Nobody reads a report, and whoever started us wants to hear what was lost.
    pub speaks: bool,
    /// Said once: in the end record, or with the refusal.
    pub settled: RefCell<Settled>,
}

impl Out {
    /// Before anything is known: the line on stderr alone.
    pub fn nowhere() -> Self {
        Self {
            run_id: String::new(),
            report: Report::new(None),
            spool: None,
            uplink: None,
            speaks: false,
            settled: RefCell::default(),
        }
    }

    /// To the supervisor around, which stamps it as said inside; false when it was lost.
    pub fn tell_around(&self, json: &str) -> bool {
        let told = |uplink: &OwnedFd| wire::send(uplink.as_raw_fd(), json.as_bytes(), &[], false);
        self.uplink.as_ref().is_none_or(|uplink| told(uplink).is_ok())
    }

    /// Says why nothing was started; the exit status.
    pub fn refuse(&self, refusal: &Refusal) -> i32 {
        let settled = self.settled.take();
        let degraded = Room::new(settled.used).degraded(settled.degraded);
        let record = report::Refused { earlier: settled.earlier, degraded, ..refusal.record(&self.run_id) };
        let json = report::to_json(&record).unwrap_or_default();
        let told = self.report.send_json(&json);
        if let Some(spool) = &self.spool {
            // The launch is refused already; the line on stderr stays the answer.
            let _ = spool.append(&json);
        }
        refusal.print();
        settle::print(&record.earlier, &record.degraded);
        if let Err(lost) = told {
            lost.print();
        }
        match refusal.code {
            "not_found" => 127,
            "exec_failed" => 126,
            _ => REFUSED,
        }
    }
}

/// The command runs, but that cannot be recorded: it ends, and what may be moved of what it left is moved.
/// The journal stays, so that the next launch on the same roots compares and writes the end record.
pub fn unrecorded(box_: &mut Supervisor, watch: Watched, refusal: Refusal) -> Refusal {
    box_.end(report::Outcome::Killed);
    let Watched { before, journal } = watch;
    let (dead, mut changes) = (sys::await_death(box_.init).is_ok(), before.compare().changes);
    let mut said =
        format!("the command had started and was ended, places that run code later: {} changed", changes.len());
    if let Some(mut journal) = journal {
        // A box that may live still writes there.
        if dead {
            quarantine::act(&before, &mut changes, &mut journal, 0);
        }
        journal.keep();
        said.push_str(", named by the next launch there");
    }
    let detail = if refusal.detail.is_empty() { said } else { format!("{}; {said}", refusal.detail) };
    refusal.detail(detail)
}

impl Session {
    /// Before the order to start: whoever is killed from here on has left a word of what was to run.
    pub fn record_decision(&self, out: &Out, args: &Args) -> Result<(), Refusal> {
        let plan = &self.loaded.plan;
        let json = report::to_json(&report::Decided {
            schema: report::SCHEMA,
            record: "decided",
            run_id: out.run_id.clone(),
            ts: ulid::now(),
            plan: self.loaded.digest.clone(),
            backend: session::backend(plan).to_string(),
            caller: plan.caller.clone(),
            standing: self.standing(),
            requested_tier: session::requested(plan)?,
            argv0: report::show(args.argv[0].to_bytes()),
            cwd: self.cwd.clone(),
            pid: std::process::id() as i32,
            origin: self.origin(),
        })?;
        out.tell_around(&json);
        spooled(out, &json, "decision")
    }

    fn origin(&self) -> &'static str {
        if self.inner.is_some() {
            "inside"
        } else {
            "outside"
        }
    }

    pub fn record_launch(&self, box_: &mut Supervisor, out: &Out, args: &Args) -> Result<(), Refusal> {
        let plan = &self.loaded.plan;
        let seen = facts::Seen { snapshot: box_.snapshot, ..self.seen };
        let (evaluation, mechanisms) = session::evaluate(plan, self.around(), seen)?;
        let asked = session::requested(plan)?;
        let record = report::Launch {
            schema: report::SCHEMA,
            record: "launch",
            run_id: out.run_id.clone(),
            ts: ulid::now(),
            plan: self.loaded.digest.clone(),
            backend: session::backend(plan).to_string(),
            kernel: version::kernel(),
            landlock_abi: landlock::kernel_abi() as u32,
            caller: plan.caller.clone(),
            standing: self.standing(),
            tier_downgrade: evaluation.effective_tier < asked,
            requested_tier: asked,
            effective_tier: evaluation.effective_tier,
            profiles: plan.profiles.clone(),
            promises: evaluation.states.clone(),
            missing: evaluation.missing.clone(),
            would_be: evaluation.would_be,
            kept: evaluation.kept,
            of: evaluation.of,
            mechanisms,
            home: if box_.snapshot { "snapshot" } else { self.home },
            net: self.net().to_string(),
            env_kept: self.env.kept.clone(),
            env_dropped: self.env.dropped.clone(),
            limits: match self.around() {
                Some(ring) => limits::notes_inside(&ring.in_force(&plan.limits), plan.backend),
                None => limits::notes(&plan.limits, plan.backend),
            },
            argv0: report::show(args.argv[0].to_bytes()),
            cwd: self.cwd.clone(),
            supervisor: report::Supervisor { pid: std::process::id() as i32, start_ticks: start_ticks() },
            command_pid: box_.command,
            origin: self.origin(),
        };
        let json = report::to_json(&record)?;
        if let Some(ring) = self.around() {
            let known = record.known(session::known(plan, ring, seen)?);
            if !out.tell_around(&report::to_json(&known)?) {
                box_.degraded.push("launch record lost on its way to the box around".to_string());
            }
        }
        spooled(out, &json, "launch record")?;
        // Last: whoever reads a launch record may rely on it.
        out.report.send_json(&json)
    }

    /// `compared`: where that was possible before the box was taken apart.
    pub fn record_end(&self, box_: &mut Supervisor, out: &Out, watch: Watched, compared: Option<Compared>) {
        let Watched { before, mut journal } = watch;
        let mut compared = compared.unwrap_or_else(|| before.compare());
        if let Some(journal) = &mut journal {
            let lost = quarantine::act(&before, &mut compared.changes, journal, 0);
            compared.degraded.splice(0..0, lost);
        }
        let unseen = compared.unseen;
        self.write_end(box_, out, compared, out.settled.take());
        // Only now: a crash up to here loses nothing. What was not seen the next launch there compares.
        journal.filter(|_| unseen).map(Journal::keep);
    }

    fn copy_back(&self, box_: &Supervisor, out: &Out) -> (Vec<Copied>, Vec<String>) {
        let aside = Aside { state_home: self.state_home.as_deref().unwrap_or_default(), run_id: &out.run_id };
        // Without its places the box did not get as far as a command.
        match box_.places.is_empty() {
            true => (vec![], vec![]),
            false => copyback::finish(&self.copies, &box_.places, &self.loaded.plan, &aside),
        }
    }

    fn write_end(&self, box_: &mut Supervisor, out: &Out, compared: Compared, settled: Settled) {
        if let Some(what) = &compared.failed {
            box_.changed = format!("{what} (hint: `stockade show {}` names them)", out.run_id);
            box_.ended.get_or_insert(report::Outcome::Persistence);
        }
        let (copied, lost) = self.copy_back(box_, out);
        let mut said = [std::mem::take(&mut box_.degraded), lost].concat();
        if box_.inside.closed > 0 {
            said.push(format!("inside: {} connections closed for saying too much", box_.inside.closed));
        }
        if box_.inside.crowded > 0 {
            said.push(format!("inside: {} connections closed to let others in", box_.inside.crowded));
        }
        // Last: of these the box chooses how many there are.
        said.extend(settled.degraded.into_iter().chain(compared.degraded));
        let listed = listed(self.state_home.as_deref(), &out.run_id);
        let mut room = Room::new(settled.used);
        let persistence = room.changes(compared.changes, listed.as_deref());
        box_.lost.dedup();
        let guard_lost = room.take(box_.lost.clone(), "guard_lost", room::GUARDS);
        let copyback = room.take(copied, "copyback", room::COPYBACK);
        let degraded = room.degraded(said);
        let discarded = discard::count(&box_.places, &self.loaded.plan);
        let (exit_code, signal) = ending::ends(box_);
        let (cpu_ms, max_rss_bytes) = ending::usage();
        let record = report::End {
            schema: report::SCHEMA,
            record: "end",
            run_id: out.run_id.clone(),
            ts: ulid::now(),
            outcome: ending::outcome(box_, signal),
            exit_code,
            signal,
            limit_hit: box_.limit_hit(signal),
            wall_ms: Some(self.began.elapsed().as_millis() as u64),
            cpu_ms: Some(cpu_ms),
            max_rss_bytes: Some(max_rss_bytes),
            persistence,
            quarantine: listed,
            earlier: settled.earlier,
            guard_lost,
            discarded,
            copyback,
            net_denied: None,
            inside: box_.inside.received,
            degraded,
        };
        let json = report::to_json(&record).unwrap_or_default();
        out.tell_around(&json);
        let spooled = out.spool.as_ref().map_or(Ok(Appended::Whole), |spool| spool.append(&json));
        if !matches!(spooled, Ok(Appended::Whole)) {
            eprintln!("stockade: audit degraded: the end record of {} could not be written", out.run_id);
        }
        // The reader may have gone once it knew the status; the command has run.
        let _ = out.report.send_json(&json);
        if let Some(said) = record.discarded.and_then(|lost| lost.line()).filter(|_| out.speaks) {
            let hint = if out.spool.is_some() { "; stockade show last" } else { "" };
            report::say(&format!("{said}{hint}"));
        }
    }
}

/// Appends a record without which nothing runs.
fn spooled(out: &Out, json: &str, what: &str) -> Result<(), Refusal> {
    match out.spool.as_ref().map(|spool| spool.append(json)) {
        Some(Err(e)) => Err(Refusal::new("spool_failed", what).io(&e)),
        Some(Ok(Appended::Degraded(lost))) => Err(Refusal::new("spool_failed", what).detail(lost)),
        _ => Ok(()),
    }
}

pub fn record_inside(box_: &mut Supervisor, out: &Out, data: &[u8]) {
    let record = report::Inside::stamp(&out.run_id, data);
    let json = report::to_json(&record).ok();
    json.as_ref().map(|json| out.tell_around(json));
    let written = json.and_then(|json| Some(out.spool.as_ref()?.append(&json)));
    if matches!(written, Some(Err(_) | Ok(Appended::Degraded(_)))) && box_.degraded.is_empty() {
        box_.degraded.push("inside record lost".to_string());
    }
}

/// The list of what was moved for a run, where anything was.
fn listed(state_home: Option<&str>, run_id: &str) -> Option<String> {
    manifest::path(state_home?, run_id)
}

/// proc_pid_stat(5), field 22: tells this process from a later one of the same pid.
fn start_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().nth(19).and_then(|n| n.parse().ok()).unwrap_or(0)
}
