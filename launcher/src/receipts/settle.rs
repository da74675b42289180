//! Boxes that were killed on the roots of this one.
//!
//! Owns looking in their place, moving what may be moved, and writing their end records, before
//! the box of this launch exists. One at a time: while this process holds the file of one, that
//! one counts as a box that lives. Next: persist/journals.rs.

use std::io;

use super::room::{self, Room};
use super::{listed, Out};
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
    /// What of them could not be found out, or did not fit.
    pub degraded: Vec<String>,
    /// What `earlier` takes of the record's room.
    pub used: usize,
}

/// How many a refusal names on stderr.
const PRINTED: usize = 5;
/// Bytes of what is not known of one killed box that are said again for this one.
const REPEATED: usize = 2 << 10;

/// Settles every one, then forgets what is too old on other roots. What was found is said by the
/// record that follows, whichever that is.
pub fn settle(journals: &Journals, watched: &[Persistence], out: &Out) -> io::Result<()> {
    let (ours, others) = journals.names_of(watched)?;
    let mut settled = out.settled.borrow_mut();
    let mut unnamed = 0;
    for left in ours.iter().filter_map(|name| journals.leftover(name)) {
        unnamed += usize::from(!settled.add(left, out));
    }
    if unnamed > 0 {
        settled.degraded.push(format!("earlier: {unnamed} more"));
    }
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
    /// False where there was no room to name it here. Its own record names it all the same.
    fn add(&mut self, mut left: Leftover, out: &Out) -> bool {
        let (changes, mut degraded) = look_for(&mut left);
        let run_id = left.run_id().to_owned();
        self.repeat(&run_id, degraded.clone());
        let quarantine = left.state_home().and_then(|home| listed(Some(home), &run_id));
        degraded.push(format!("end: written by run {}: the supervisor of this one did not get that far", out.run_id));
        let mut room = Room::new(0);
        let persistence = room.changes(changes.clone(), quarantine.as_deref());
        let record = killed(&run_id, persistence, quarantine.clone(), room.degraded(degraded));
        let json = report::to_json(&record).unwrap_or_default();
        if out.spool.as_ref().is_some_and(|spool| !matches!(spool.append(&json), Ok(Appended::Whole))) {
            eprintln!("stockade: audit degraded: the end record of {run_id} could not be written");
        }
        changes.is_empty() || self.name(run_id, changes, quarantine)
    }

    /// Each takes at most half of what is left, so that a box that chose its names well keeps no
    /// other out, nor itself.
    fn name(&mut self, run_id: String, changes: Vec<Change>, quarantine: Option<String>) -> bool {
        let left = room::EARLIER - self.used;
        let mut row = report::Earlier { run_id, persistence: vec![], quarantine };
        let bare = room::size(&row);
        if bare > left {
            return false;
        }
        let all = room::sizes(&changes);
        let (kept, used) = room::fit(room::sorted(changes), (left / 2).saturating_sub(bare));
        let cut = room::more(all, room::sizes(&kept), row.quarantine.as_deref());
        self.degraded.extend(cut.map(|line| format!("run {}: {line}", row.run_id)));
        row.persistence = kept;
        self.used += bare + used;
        self.earlier.push(row);
        true
    }

    /// What is not known of a killed box is not known of these roots. The box chose how much that is.
    fn repeat(&mut self, run_id: &str, said: Vec<String>) {
        let all = said.len();
        let (kept, _) = room::fit(said, REPEATED);
        let more = (kept.len() < all).then(|| format!("{} more lines in its own record", all - kept.len()));
        self.degraded.extend(kept.into_iter().chain(more).map(|said| format!("run {run_id}: {said}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipts::room::tests::changes;

    #[test]
    fn a_killed_box_with_a_full_list_is_named_with_part_of_it_and_so_are_those_after_it() {
        let mut settled = Settled::default();
        for run in 0..4 {
            // Lengths that leave no room for the row itself where the whole room may be filled.
            for length in [100, 103, 150] {
                assert!(settled.name(format!("{run}-{length}"), changes(2_000, length), None));
            }
        }
        assert!(settled.earlier.len() == 12 && settled.used <= room::EARLIER);
        assert!(settled.earlier[..3].iter().all(|run| !run.persistence.is_empty()));
        let size: usize = settled.earlier.iter().map(room::size).sum();
        assert!(size <= settled.used, "{size} of {}", settled.used);
        assert!(settled.degraded[0].starts_with("run 0-100: persistence: "), "{:?}", settled.degraded);
        assert_eq!(settled.degraded.len(), 12);
    }

    #[test]
    fn what_a_killed_box_left_unread_does_not_fill_the_record_of_another() {
        let mut settled = Settled::default();
        settled.repeat("R", (0..1_000).map(|n| format!("persistence of /w: {n} could not be read")).collect());
        assert!(settled.degraded.len() < 100);
        assert!(settled.degraded.last().unwrap().ends_with("more lines in its own record"));
    }
}
