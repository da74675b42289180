//! Boxes that were killed on the roots of this one.
//!
//! Owns looking in their place, moving what may be moved, and writing their end records, before
//! the box of this launch exists. One at a time: while this process holds the file of one, that
//! one counts as a box that lives. Next: persist/journals.rs.

use std::io;

use super::{clip, clip_changes, listed, Out};
use crate::persist::asked::Persistence;
use crate::persist::journal::Move;
use crate::persist::journals::{Journals, Leftover};
use crate::persist::{quarantine, Change};
use crate::spool::Appended;
use crate::{report, ulid};

/// What was found of boxes that were killed on the same roots.
#[derive(Default)]
pub struct Settled {
    pub earlier: Vec<report::Earlier>,
    /// What of them could not be found out.
    pub degraded: Vec<String>,
}

/// How many a refusal names on stderr.
const PRINTED: usize = 5;

/// Settles every one, then forgets what is too old on other roots. What was found is said by the
/// record that follows, whichever that is.
pub fn settle(journals: &Journals, watched: &[Persistence], out: &Out) -> io::Result<()> {
    let (ours, others) = journals.names_of(watched)?;
    let mut settled = out.settled.borrow_mut();
    for left in ours.iter().filter_map(|name| journals.leftover(name)) {
        settled.add(left, out);
    }
    let earlier = std::mem::take(&mut settled.earlier).into_iter().filter(|run| !run.persistence.is_empty()).collect();
    settled.earlier = clip(earlier, "earlier", &mut settled.degraded);
    match journals.forget_old(&others) {
        0 => {}
        count => settled.degraded.push(format!(
            "journal: {count} forgotten of killed boxes on other roots, too old or too many: what those changed is not known"
        )),
    }
    Ok(())
}

/// For a launch that was refused after it had moved files: lines on stderr, after its own.
pub fn print(earlier: &[report::Earlier], degraded: &[String]) {
    for run in earlier.iter().take(PRINTED) {
        let moved = run.persistence.iter().filter(|change| change.restore.is_some()).count();
        let list = run
            .quarantine
            .as_ref()
            .map_or(String::new(), |path| format!(", listed in {}", report::show(path.as_bytes())));
        eprintln!(
            "stockade: run {} was killed: {} changes in places that run code later, {moved} moved to quarantine{list}",
            run.run_id,
            run.persistence.len()
        );
    }
    for said in degraded.iter().take(PRINTED) {
        eprintln!("stockade: {said}");
    }
}

impl Settled {
    fn add(&mut self, mut left: Leftover, out: &Out) {
        let (changes, mut degraded) = look_for(&mut left);
        self.degraded.extend(degraded.iter().map(|said| format!("run {}: {said}", left.run_id())));
        let listed = left.state_home().and_then(|home| listed(Some(home), left.run_id()));
        degraded.push(format!("end: written by run {}: the supervisor of this one was killed", out.run_id));
        let persistence = clip_changes(changes, listed.as_deref(), &mut degraded);
        let record =
            killed(left.run_id(), persistence.clone(), listed.clone(), clip(degraded, "degraded", &mut vec![]));
        let json = report::to_json(&record).unwrap_or_default();
        if out.spool.as_ref().is_some_and(|spool| !matches!(spool.append(&json), Ok(Appended::Whole))) {
            eprintln!("stockade: audit degraded: the end record of {} could not be written", record.run_id);
        }
        self.earlier.push(report::Earlier { run_id: record.run_id, persistence, quarantine: listed });
    }
}

/// What one killed box changed and what is not known of it, after moving what may be moved.
fn look_for(left: &mut Leftover) -> (Vec<Change>, Vec<String>) {
    match left {
        Leftover::Unread { run_id, why, .. } => {
            let said =
                format!("persistence of the killed box not compared: the journal of {run_id} cannot be read: {why}");
            (vec![], vec![said])
        }
        Leftover::Noted { journal, before, moves } => {
            let mut compared = before.compare();
            let moved = quarantine::moved(before, moves, journal.state_home());
            let lost = quarantine::act(before, &mut compared.changes, journal, Move::next_number(moves));
            compared.degraded.extend(lost);
            compared.changes.extend(moved);
            (compared.changes, compared.degraded)
        }
    }
}

fn killed(run_id: &str, persistence: Vec<Change>, quarantine: Option<String>, degraded: Vec<String>) -> report::End {
    report::End {
        schema: report::SCHEMA,
        record: "end",
        run_id: run_id.to_owned(),
        ts: ulid::now(),
        outcome: report::Outcome::Killed,
        exit_code: None,
        signal: Some(libc::SIGKILL),
        limit_hit: None,
        wall_ms: None,
        cpu_ms: None,
        max_rss_bytes: None,
        persistence,
        quarantine,
        earlier: vec![],
        guard_lost: vec![],
        discarded: None,
        copyback: vec![],
        net_denied: None,
        inside: 0,
        degraded,
    }
}
