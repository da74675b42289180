//! How much of what a box chose goes into one record.
//!
//! Owns the cut. An end record fits a pipe that nobody reads before the status is known, whatever
//! names a box made and however many: all its lists share one room. What was cut is counted, and
//! the counts come first in `degraded`. Next: settle.rs.

use serde::Serialize;

use crate::persist::Change;

/// All lists of a record. pipe(7): 64 KiB; what is no list (ten names, one path) is below 14.
const RECORD: usize = 48 << 10;
const CHANGES: usize = 16 << 10;
pub const EARLIER: usize = 16 << 10;
pub const GUARDS: usize = 4 << 10;
pub const COPYBACK: usize = 4 << 10;
/// `degraded: 4294967295 more`, with its quotes.
const LAST_LINE: usize = 40;

/// What is left of it, and what did not fit.
pub struct Room {
    left: usize,
    cut: Vec<String>,
}

impl Room {
    /// `used`: by a list that was cut before.
    pub fn new(used: usize) -> Self {
        Self { left: RECORD - used.min(RECORD), cut: vec![] }
    }

    pub fn take<T: Serialize>(&mut self, list: Vec<T>, name: &str, most: usize) -> Vec<T> {
        let all = list.len();
        let kept = self.fit(list, most);
        if kept.len() < all {
            self.cut.push(format!("{name}: {} more", all - kept.len()));
        }
        kept
    }

    pub fn changes(&mut self, changes: Vec<Change>, listed: Option<&str>) -> Vec<Change> {
        let all = sizes(&changes);
        let kept = self.fit(sorted(changes), CHANGES);
        self.cut.extend(more(all, sizes(&kept), listed));
        kept
    }

    /// Takes all that is left.
    pub fn degraded(mut self, said: Vec<String>) -> Vec<String> {
        let lines = [std::mem::take(&mut self.cut), said].concat();
        let (all, most) = (lines.len(), self.left.saturating_sub(LAST_LINE));
        let mut kept = self.fit(lines, most);
        if kept.len() < all {
            kept.push(format!("degraded: {} more", all - kept.len()));
        }
        kept
    }

    fn fit<T: Serialize>(&mut self, list: Vec<T>, most: usize) -> Vec<T> {
        let (kept, used) = fit(list, most.min(self.left));
        self.left -= used;
        kept
    }
}

/// Those that fit, in their order, and what they take: one that is too long hides none after it.
pub fn fit<T: Serialize>(mut list: Vec<T>, most: usize) -> (Vec<T>, usize) {
    let mut left = most;
    list.retain(|item| left.checked_sub(size(item)).inspect(|rest| left = *rest).is_some());
    (list, most - left)
}

/// In a list, with its comma.
pub fn size(item: &impl Serialize) -> usize {
    serde_json::to_string(item).map_or(usize::MAX, |json| json.len() + 1)
}

/// What is named is first what the list spells out, and of that first what is still there: a box
/// cannot push these out with many others. What was moved is in the run's own list.
pub fn sorted(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by_key(|change| (!change.found.spelled, change.restore.is_some()));
    changes
}

/// How many there are, and how many of them were moved.
pub fn sizes(changes: &[Change]) -> (usize, usize) {
    (changes.len(), changes.iter().filter(|change| change.restore.is_some()).count())
}

/// The line for those that were cut.
pub fn more(all: (usize, usize), kept: (usize, usize), listed: Option<&str>) -> Option<String> {
    let (more, moved) = (all.0 - kept.0, all.1 - kept.1);
    let list = listed.filter(|_| moved > 0).map_or(String::new(), |path| format!(", listed in {path}"));
    let there = more - moved;
    (more > 0).then(|| format!("persistence: {more} more: {there} left where they are, {moved} moved{list}"))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::persist::ChangeKind;

    pub fn changes(count: usize, length: usize) -> Vec<Change> {
        let one = |number: usize| Change {
            root: "/home/u/work".to_owned(),
            path: format!("{number}{}", "\"".repeat(length)),
            change: ChangeKind::Created,
            restore: None,
            left: None,
            found: crate::persist::Found::default(),
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn every_list_at_its_worst_fits_one_pipe_and_what_was_cut_is_said() {
        let lines = |count: usize| (0..count).map(|n| format!("{n}{}", "\\".repeat(300))).collect::<Vec<_>>();
        let mut room = Room::new(EARLIER);
        let kept = room.changes(changes(2_000, 100), Some("/s/quarantine/R/manifest.jsonl"));
        let guards = room.take(lines(500), "guard_lost", GUARDS);
        let copies = room.take(lines(500), "copyback", COPYBACK);
        let degraded = room.degraded(lines(500));
        let total: usize = EARLIER + [size(&kept), size(&guards), size(&copies), size(&degraded)].iter().sum::<usize>();
        assert!(total < 50 << 10 && !kept.is_empty() && !guards.is_empty() && !copies.is_empty(), "{total}");
        let said: Vec<&str> = degraded.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(said[..3], ["persistence", "guard_lost", "copyback"]);
        assert_eq!(*said.last().unwrap(), "degraded");
    }

    #[test]
    fn what_fits_is_kept_whole_and_nothing_is_said() {
        let mut room = Room::new(0);
        assert_eq!((room.changes(changes(3, 5), None).len(), room.degraded(vec![])), (3, vec![]));
    }

    #[test]
    fn a_long_one_hides_none_after_it() {
        let list = ["a".repeat(200), "b".to_owned()];
        assert_eq!(fit(list.to_vec(), 100), (vec!["b".to_owned()], 4));
    }
}
