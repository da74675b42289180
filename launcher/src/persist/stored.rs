//! The state of one root as text in a journal.
//!
//! Owns that form: what a `State` holds, with names as text that keeps every byte, and the
//! bound. Beyond it the text says that nothing is known, so nothing is moved. Next: journal.rs.

use std::io;

use serde::{Deserialize, Serialize};

use super::journal::json;
use super::walk::{Entry, Seen};
use super::State;

#[derive(Serialize, Deserialize, Default)]
pub struct Stored {
    taken_ns: i64,
    identity: (u64, u64),
    entries: Vec<(String, Entry)>,
    repositories: Vec<(String, (u64, u64))>,
    cut: bool,
    unreadable: Vec<String>,
    tracked: Option<Vec<String>>,
}

/// The text of one root; over the bound that nothing is known of it, so nothing is moved there.
pub fn stored(state: &State, most: usize) -> io::Result<String> {
    let text = json(&Stored::of(state))?;
    match text.len() <= most {
        true => Ok(text),
        false => json(&Stored { taken_ns: taken_ns(state), identity: state.identity, cut: true, ..Stored::default() }),
    }
}

fn taken_ns(state: &State) -> i64 {
    i64::try_from(state.taken_ns).unwrap_or(i64::MAX)
}

/// Bytes of a name as text and back: each byte is the character of its number.
pub fn to_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

pub fn from_text(text: &str) -> Vec<u8> {
    text.chars().map(|c| c as u32 as u8).collect()
}

impl Stored {
    fn of(state: &State) -> Self {
        let names = |list: &Vec<Vec<u8>>| list.iter().map(|name| to_text(name)).collect();
        Self {
            taken_ns: taken_ns(state),
            identity: state.identity,
            entries: state.seen.entries.iter().map(|(name, entry)| (to_text(name), *entry)).collect(),
            repositories: state.seen.repositories.iter().map(|(name, id)| (to_text(name), *id)).collect(),
            cut: state.seen.cut,
            unreadable: names(&state.seen.unreadable),
            tracked: state.tracked.as_ref().map(names),
        }
    }

    pub fn state(self) -> State {
        let names = |list: Vec<String>| list.iter().map(|name| from_text(name)).collect();
        State {
            taken_ns: i128::from(self.taken_ns),
            identity: self.identity,
            seen: Seen {
                entries: self.entries.into_iter().map(|(name, entry)| (from_text(&name), entry)).collect(),
                repositories: self.repositories.into_iter().map(|(name, id)| (from_text(&name), id)).collect(),
                cut: self.cut,
                unreadable: names(self.unreadable),
            },
            tracked: self.tracked.map(names),
        }
    }
}
