//! P0 from its first order to P1 until every process of the box is dead.
//!
//! Owns that order. What killed boxes left is settled and what is there now is noted before the
//! command runs; once it runs, nothing goes wrong without a look at what it did. Next:
//! `supervise.rs` (the loop), `receipts.rs`.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::nest::Entrance;
use crate::persist::journal::Journal;
use crate::persist::journals::Journals;
use crate::persist::{self, Compared};
use crate::receipts::{self, Out, Watched};
use crate::report::{Outcome, Refusal};
use crate::session::{wall_ms, Block, Session};
use crate::supervise::{Step, Supervisor};
use crate::trace::{self, Tracer};
use crate::{appear, clock, control, cover, nested, sys};

impl Session {
    pub fn drive(&self, box_: &mut Supervisor, out: &Out, args: &Args, block: &Block) -> Result<(), Refusal> {
        order(box_, &control::Order::Build)?;
        let journals = self.journals(args)?;
        let watched = self.prepare(box_, journals.as_ref(), out, args)?;
        match self.supervise(box_, out, (args, block), &watched) {
            Ok(compared) => {
                box_.terminal.take_back();
                box_.degraded.extend(box_.tracer.take().and_then(Tracer::finish));
                self.record_end(box_, out, watched, compared);
                Ok(())
            }
            Err(refusal) if box_.started => Err(receipts::unrecorded(box_, watched, refusal)),
            Err(refusal) => Err(refusal),
        }
    }

    /// All that the order to start waits for.
    fn prepare<'a>(
        &self,
        box_: &mut Supervisor,
        journals: Option<&'a Journals>,
        out: &Out,
        args: &Args,
    ) -> Result<Watched<'a>, Refusal> {
        // Before P1 guards anything, for which it waits for the covers: what a killed box left and is
        // moved now is no longer there to be guarded, and from here on no other box moves what this
        // one guards.
        let journal = self.open_journal(journals, out)?;
        self.cover(box_)?;
        let watched = self.note_roots(journal)?;
        out.report.ready()?;
        self.record_decision(out, args)?;
        Ok(watched)
    }

    /// Tells P1 what it covers and guards, and keeps the way in by which a guard is put back.
    fn cover(&self, box_: &mut Supervisor) -> Result<(), Refusal> {
        let plan = &self.loaded.plan;
        let mut covers = cover::find(plan, &self.cwd, self.inner.is_some())?;
        covers.guards.extend(appear::find(plan)?);
        let text =
            serde_json::to_vec(&covers).map_err(|e| Refusal::new("mount_denied", "covers").detail(e.to_string()))?;
        box_.guards.extend(covers.guards);
        sent(box_, control::send_covers(box_.control.as_raw_fd(), &text))?;
        // Inside, the namespaces come from P1 itself: /proc here is not that of our own processes.
        if !box_.guards.is_empty() && self.inner.is_none() {
            match Entrance::open(box_.init) {
                Ok(way) => box_.entrance = Some(way),
                Err(e) => return Err(why_gone(box_, Refusal::new("guard_denied", "entrance").io(&e))),
            }
        }
        Ok(())
    }

    /// Until the end; what had changed by then, where that could be seen before the box was taken apart.
    fn supervise(
        &self,
        box_: &mut Supervisor,
        out: &Out,
        (args, block): (&Args, &Block),
        watched: &Watched,
    ) -> Result<Option<Compared>, Refusal> {
        // From here on P0 waits for nothing but its poll, which keeps the time.
        clock::stop();
        order(box_, &control::Order::Start)?;
        clock::gone();
        let wall = wall_ms(&self.loaded.plan, args).map(Duration::from_millis);
        box_.deadline = wall.map(|wall| clock::limit(self.began, wall));
        let mut compared = None;
        loop {
            match box_.next() {
                Step::Forked => {
                    self.name_command(box_);
                    watch(box_, args)?;
                }
                Step::Started => {
                    box_.deadline = wall.map(|wall| Instant::now() + wall);
                    self.record_launch(box_, out, args)?;
                    sys::shed_code();
                }
                Step::Refused(refusal) => return Err(refusal),
                Step::Inside(data) => receipts::record_inside(box_, out, &data),
                Step::Asked => nested::serve(self, box_, out, block),
                // While the kernel takes the box apart.
                Step::Quiet => compared = Some(watched.before.compare()),
                Step::Over => {
                    for record in box_.nests.finish() {
                        receipts::record_inside(box_, out, &record);
                    }
                    return Ok(compared);
                }
            }
        }
    }

    /// Inside: whoever asked may have a terminal to hand to the command, by its number there.
    fn name_command(&self, box_: &Supervisor) {
        if let Some(inner) = &self.inner {
            nested::name_command(inner, box_.command);
        }
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
    fn open_journal<'a>(&self, journals: Option<&'a Journals>, out: &Out) -> Result<Option<Journal<'a>>, Refusal> {
        let persistence = &self.loaded.plan.persistence;
        let Some(journals) = journals else { return Ok(None) };
        receipts::settle(journals, persistence, out).map_err(|e| unnoted(&e))?;
        let journal = journals.begin(&out.run_id, persistence).map_err(|e| unnoted(&e))?;
        clock::journal(journals.fd(), &journal.name);
        Ok(Some(journal))
    }

    /// What the write roots hold, before the command runs: noted where a crash leaves it.
    fn note_roots<'a>(&self, mut journal: Option<Journal<'a>>) -> Result<Watched<'a>, Refusal> {
        let before = persist::snapshot(&self.loaded.plan.persistence).map_err(|e| unwatched(&e))?;
        if let Some(journal) = &mut journal {
            journal.record(&before).map_err(|e| unnoted(&e))?;
        }
        Ok(Watched { before, journal })
    }
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
    let gone = sys::hung_up(box_.control.as_raw_fd());
    box_.end(Outcome::Killed);
    match box_.next() {
        Step::Refused(said) if said.errno.is_some() || !said.is("fork_failed") => said,
        // Ended from outside before we did: no answer of the host's.
        Step::Refused(said) if gone && said.transient => otherwise.transient(true),
        _ => otherwise,
    }
}
