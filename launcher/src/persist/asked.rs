//! What the plan asks for: which names of a root are watched, and what follows.

use serde::{Deserialize, Serialize};

use crate::plan::required;

#[derive(Debug, Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Persistence {
    pub root: String,
    pub names: Vec<String>,
    pub mode: OnPersistence,
    /// Only where the mode says so and the root lies in a repository.
    #[serde(deserialize_with = "required")]
    pub quarantine: Option<Quarantine>,
}

/// What happens to new persistence points when the box ends.
#[derive(Debug, Deserialize, Serialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum OnPersistence {
    Report,
    Quarantine,
    Fail,
}

#[derive(Debug, Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Quarantine {
    /// Those of the watched names that are moved when they are new.
    pub names: Vec<String>,
    /// The git index that says what is tracked, and where the root lies in its work tree: empty, or
    /// ending with a slash.
    pub index: String,
    pub prefix: String,
}
