//! The records of the receipt schema, field by field.
//!
//! Owns their shape only; a field is added here and in the schema together.

use serde::Serialize;

use super::SCHEMA;
use crate::persist::Change;
use crate::promises::{PromiseState, Tier};
use crate::ulid;

/// What was proved before exec. Written only after exec has succeeded.
#[derive(Debug, Clone, Serialize)]
pub struct Launch {
    pub schema: &'static str,
    pub record: &'static str,
    pub run_id: String,
    pub ts: String,
    pub plan: String,
    pub backend: String,
    pub kernel: String,
    pub landlock_abi: u32,
    pub caller: String,
    pub requested_tier: Tier,
    pub effective_tier: Tier,
    pub profiles: Vec<String>,
    pub promises: Vec<PromiseState>,
    pub missing: Vec<String>,
    pub would_be: Tier,
    pub kept: usize,
    pub of: usize,
    pub mechanisms: Vec<String>,
    pub home: &'static str,
    pub net: String,
    pub env_kept: Vec<String>,
    pub env_dropped: Vec<String>,
    pub limits: Vec<LimitApplied>,
    pub argv0: String,
    pub cwd: String,
    pub supervisor: Supervisor,
    pub command_pid: i32,
    pub origin: &'static str,
}

/// One limit, how it is held and whether the mechanism is exact.
#[derive(Debug, Clone, Serialize)]
pub struct LimitApplied {
    pub name: &'static str,
    pub value: u64,
    pub mechanism: &'static str,
    pub exact: bool,
}

/// The supervisor, named so that a reused pid cannot be mistaken for it.
#[derive(Debug, Clone, Serialize)]
pub struct Supervisor {
    pub pid: i32,
    pub start_ticks: u64,
}

/// How the tree ended.
#[derive(Debug, Clone, Serialize)]
pub struct End {
    pub schema: &'static str,
    pub record: &'static str,
    pub run_id: String,
    pub ts: String,
    pub outcome: Outcome,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub limit_hit: Option<LimitHit>,
    pub wall_ms: u64,
    pub cpu_ms: u64,
    pub max_rss_bytes: u64,
    pub persistence: Vec<Change>,
    pub guard_lost: Vec<String>,
    pub discarded: u64,
    pub net_denied: Vec<String>,
    pub inside: u64,
    pub degraded: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Exited,
    Signalled,
    TimedOut,
    Limit,
    GuardLost,
    CallerGone,
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    Wall,
    Memory,
    CpuTime,
}

/// A launch that did not happen. It never carries a tier.
#[derive(Debug, Clone, Serialize)]
pub struct Refused {
    pub schema: &'static str,
    pub record: &'static str,
    pub run_id: String,
    pub ts: String,
    pub code: &'static str,
    pub step: u8,
    pub object: String,
    pub errno: Option<i32>,
    pub errno_name: Option<&'static str>,
    pub message: String,
    pub hint: String,
    pub transient: bool,
}

/// What a process in the box said over the box socket: data, never evidence.
#[derive(Debug, Clone, Serialize)]
pub struct Inside {
    pub schema: &'static str,
    pub record: &'static str,
    pub run_id: String,
    pub ts: String,
    pub origin: &'static str,
    pub data: String,
}

impl Inside {
    /// Stamps a message; run id, time and origin are ours, whatever it contains.
    pub fn stamp(run_id: &str, data: &[u8]) -> Self {
        let data = String::from_utf8_lossy(data).into_owned();
        Self { schema: SCHEMA, record: "inside", run_id: run_id.to_owned(), ts: ulid::now(), origin: "inside", data }
    }
}
