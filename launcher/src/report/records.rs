//! The records of the receipt schema, field by field.
//!
//! Owns their shape only; a field is added here and in the schema together.

use serde::Serialize;

use super::SCHEMA;
use crate::copyback::Copied;
use crate::discard::Discarded;
use crate::persist::Change;
use crate::promises::{Evaluation, PromiseState, Tier};
use crate::ulid;

/// What is about to be started, and by which plan. Says nothing of what the box will keep.
#[derive(Debug, Clone, Serialize)]
pub struct Decided {
    pub schema: &'static str,
    pub record: &'static str,
    pub run_id: String,
    pub ts: String,
    pub plan: String,
    pub backend: String,
    pub caller: String,
    #[serde(flatten)]
    pub standing: Standing,
    pub requested_tier: Tier,
    pub argv0: String,
    pub cwd: String,
    /// Of the supervisor.
    pub pid: i32,
    pub origin: &'static str,
}

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
    #[serde(flatten)]
    pub standing: Standing,
    pub tier_downgrade: bool,
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

impl Launch {
    /// For others than the one who asked from inside a box: of the promises those that are known to be kept.
    pub fn known(self, evaluation: Evaluation) -> Launch {
        Launch {
            tier_downgrade: evaluation.effective_tier < self.requested_tier,
            effective_tier: evaluation.effective_tier,
            promises: evaluation.states,
            missing: evaluation.missing,
            would_be: evaluation.would_be,
            kept: evaluation.kept,
            of: evaluation.of,
            ..self
        }
    }
}

/// Why there is a box and what was around when that was decided, in the words of who decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Null, like the row, where the plan does not say.
    pub decision: Option<String>,
    pub row: Option<String>,
    pub active_tier: Option<Tier>,
    pub tier_known: bool,
}

impl Standing {
    /// From the free text of a plan, which names the tier around only where it is known; a word that
    /// the schema does not know is not repeated.
    pub fn of(record: &serde_json::Map<String, serde_json::Value>) -> Self {
        let word = |key: &str| record.get(key).and_then(|value| value.as_str());
        let row = |word: &&str| matches!(word.as_bytes(), [b'D', n @ ..] if !n.is_empty() && n.iter().all(u8::is_ascii_digit));
        let active_tier = word("active_tier").and_then(Tier::parse);
        Self {
            decision: word("decision").filter(|word| matches!(*word, "wrap" | "tighten")).map(str::to_owned),
            row: word("row").filter(row).map(str::to_owned),
            active_tier,
            tier_known: active_tier.is_some(),
        }
    }

    /// Of a box that the supervisor of another one builds in it.
    pub fn inside(around: Tier) -> Self {
        let word = |text: &str| Some(text.to_string());
        Self { decision: word("tighten"), row: word("D8"), active_tier: Some(around), tier_known: true }
    }
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
    /// Null, like the next two, where another launch wrote the record for a box that was killed.
    pub wall_ms: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub max_rss_bytes: Option<u64>,
    pub persistence: Vec<Change>,
    /// The file with every move into quarantine and the line that undoes it.
    pub quarantine: Option<String>,
    /// What killed boxes left on the same roots, found at the start of this one.
    pub earlier: Vec<Earlier>,
    pub guard_lost: Vec<String>,
    pub discarded: Option<Discarded>,
    pub copyback: Vec<Copied>,
    /// Not recorded by this version.
    pub net_denied: Option<Vec<String>>,
    pub inside: u64,
    pub degraded: Vec<String>,
}

/// One box that was killed, and what it changed.
#[derive(Debug, Clone, Serialize)]
pub struct Earlier {
    pub run_id: String,
    pub persistence: Vec<Change>,
    pub quarantine: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Exited,
    Signalled,
    TimedOut,
    Limit,
    GuardLost,
    /// A persistence point changed, and the plan says that this fails the run.
    Persistence,
    CallerGone,
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    Wall,
    Memory,
    CpuTime,
    Processes,
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
    /// As in the end record: what was settled before this launch was refused.
    pub earlier: Vec<Earlier>,
    pub degraded: Vec<String>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn launch() -> Launch {
        let text = String::new;
        Launch {
            schema: SCHEMA,
            record: "launch",
            run_id: text(),
            ts: ulid::now(),
            plan: text(),
            backend: text(),
            kernel: text(),
            landlock_abi: 7,
            caller: text(),
            standing: Standing::default(),
            tier_downgrade: true,
            requested_tier: Tier::Strict,
            effective_tier: Tier::Guarded,
            profiles: Vec::new(),
            promises: Vec::new(),
            missing: Vec::new(),
            would_be: Tier::Strict,
            kept: 0,
            of: 0,
            mechanisms: Vec::new(),
            home: "overlay",
            net: text(),
            env_kept: Vec::new(),
            env_dropped: Vec::new(),
            limits: Vec::new(),
            argv0: text(),
            cwd: text(),
            supervisor: Supervisor { pid: 1, start_ticks: 2 },
            command_pid: 3,
            origin: "outside",
        }
    }

    fn decided() -> Decided {
        let text = String::new;
        Decided {
            schema: SCHEMA,
            record: "decided",
            run_id: text(),
            ts: ulid::now(),
            plan: text(),
            backend: text(),
            caller: text(),
            standing: Standing::default(),
            requested_tier: Tier::Strict,
            argv0: text(),
            cwd: text(),
            pid: 1,
            origin: "outside",
        }
    }

    fn end() -> End {
        End {
            schema: SCHEMA,
            record: "end",
            run_id: String::new(),
            ts: ulid::now(),
            outcome: Outcome::TimedOut,
            exit_code: None,
            signal: None,
            limit_hit: Some(LimitHit::CpuTime),
            wall_ms: Some(0),
            cpu_ms: Some(0),
            max_rss_bytes: Some(0),
            persistence: Vec::new(),
            quarantine: None,
            earlier: Vec::new(),
            guard_lost: Vec::new(),
            discarded: None,
            copyback: Vec::new(),
            net_denied: None,
            inside: 0,
            degraded: Vec::new(),
        }
    }

    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn every_record_has_exactly_the_fields_of_the_published_schema() {
        let schema = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../schemas/receipt.v1.json"));
        let schema: Value = serde_json::from_str(schema).unwrap();
        let records = [
            serde_json::to_value(decided()).unwrap(),
            serde_json::to_value(launch()).unwrap(),
            serde_json::to_value(end()).unwrap(),
            serde_json::to_value(crate::report::Refusal::new("usage", "x").record("R")).unwrap(),
            serde_json::to_value(Inside::stamp("R", b"x")).unwrap(),
        ];
        for record in records {
            let name = record["record"].as_str().unwrap();
            let mut published = keys(&schema["$defs"][name]["properties"]);
            // Only the spool adds the length.
            published.remove("len");
            assert_eq!(keys(&record), published, "{name}");
        }
    }

    #[test]
    fn a_launch_says_where_it_was_decided_in_words_of_the_schema_or_not_at_all() {
        let said = |text: &str| Standing::of(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap());
        let got = said(r#"{"decision":"wrap","row":"D2","active_tier":"off"}"#);
        let want = Standing {
            decision: Some("wrap".to_string()),
            row: Some("D2".to_string()),
            active_tier: Some(Tier::Off),
            tier_known: true,
        };
        assert_eq!(got, want);
        let odd = r#"{"decision":"passthrough","row":"D+2","active_tier":"root"}"#;
        assert_eq!((said(odd), said("{}")), (Standing::default(), Standing::default()));
    }

    #[test]
    fn words_are_spelled_as_published() {
        let (launch, end) = (serde_json::to_value(launch()).unwrap(), serde_json::to_value(end()).unwrap());
        assert_eq!(
            (launch["requested_tier"].as_str(), launch["effective_tier"].as_str()),
            (Some("strict"), Some("guarded"))
        );
        assert_eq!((end["outcome"].as_str(), end["limit_hit"].as_str()), (Some("timed_out"), Some("cpu_time")));
        assert_eq!(serde_json::to_value(crate::promises::State::NotKept).unwrap(), "not_kept");
    }
}
