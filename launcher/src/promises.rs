//! Promises: from facts that were applied to states and the effective tier.
//!
//! Owns the evaluation. The plan lists the promises and the facts that keep
//! each. Facts follow from the plan (`facts.rs`), because a step that fails
//! refuses the launch: a record with them is written only when every step has
//! succeeded, so the effective tier is computed from what was done.
//! Fails closed: an unknown fact, tier or state is an error, a tier for which no
//! promise is listed is not reached. Next: report.rs.

use std::collections::{BTreeSet, HashSet};

use serde::Serialize;

use crate::plan::PlanPromise;

/// Everything that a launch can prove.
pub const FACTS: &[&str] = &[
    "userns",
    "mntns",
    "pidns",
    "ipcns",
    "utsns",
    "cgroupns",
    "netns",
    "mounts",
    "overlay_home",
    "snapshot_home",
    "guards",
    "proc_fresh",
    "proc_covers",
    "dev_private",
    "init_protected",
    "fds_closed",
    "env_filtered",
    "no_new_privs",
    "keyring",
    "caps_empty",
    "bounding_empty",
    "landlock_fs",
    "landlock_signal",
    "landlock_abstract",
    "rlimits",
    "seccomp",
    "persistence_watch",
    "supervised",
    "terminal_filter",
    "sockets_covered",
    "ids_shifted",
    "domain",
    "ipc_refused",
    "unix_refused",
    "net_refused",
    "keyring_refused",
];

/// Isolation tiers, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    Off,
    Standard,
    Guarded,
    Strict,
}

impl Tier {
    const PROMISING: [Tier; 3] = [Tier::Standard, Tier::Guarded, Tier::Strict];

    /// Reads a tier as plans spell it.
    pub fn parse(name: &str) -> Option<Self> {
        [Tier::Off, Tier::Standard, Tier::Guarded, Tier::Strict].into_iter().find(|tier| tier.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Tier::Off => "off",
            Tier::Standard => "standard",
            Tier::Guarded => "guarded",
            Tier::Strict => "strict",
        }
    }
}

/// The facts of one launch, and whether its backend is `namespaces`.
#[derive(Debug, Clone)]
pub struct FactSet {
    namespaces: bool,
    facts: BTreeSet<&'static str>,
}

impl FactSet {
    pub fn new(namespaces: bool) -> Self {
        Self { namespaces, facts: BTreeSet::new() }
    }

    /// Records a fact whose step is carried out or refuses the launch.
    pub fn add(&mut self, fact: &'static str) {
        debug_assert!(FACTS.contains(&fact), "unknown fact {fact}");
        self.facts.insert(fact);
    }

    pub fn has(&self, fact: &str) -> bool {
        self.facts.contains(fact)
    }

    /// All facts, sorted: `mechanisms` of the receipt.
    pub fn names(&self) -> Vec<String> {
        self.facts.iter().map(|fact| (*fact).to_owned()).collect()
    }
}

/// What became of a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Kept,
    NotKept,
    Waived,
}

/// One row of the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromiseState {
    pub id: String,
    pub state: State,
    pub mechanism: Vec<String>,
    pub reason: Option<String>,
}

/// The answer of `evaluate`.
#[derive(Debug, Clone)]
pub struct Evaluation {
    pub states: Vec<PromiseState>,
    pub effective_tier: Tier,
    /// Promises that the requested tier requires and that are not kept.
    pub missing: Vec<String>,
    /// The effective tier as it would be without the waivers.
    pub would_be: Tier,
    /// Of the promises that the requested tier requires, how many are kept.
    pub kept: usize,
    pub of: usize,
    /// False: the launch must be refused (`promise_not_kept`).
    pub accepted: bool,
}

/// Refuses rows that could make a promise look kept by accident: an unknown
/// fact, an empty alternative (true of nothing), a doubled id, a state that a
/// plan may not claim.
pub fn check(promises: &[PlanPromise]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for promise in promises {
        let fault = |what: String| Err(format!("promise {:?}: {what}", promise.id));
        if promise.id.is_empty() || !seen.insert(&promise.id) {
            return fault("got an empty or repeated id".into());
        }
        if let Some(tier) = promise.tiers.iter().find(|t| Tier::parse(t).is_none_or(|t| t == Tier::Off)) {
            return fault(format!("got tier {tier:?}, expected standard, guarded or strict"));
        }
        if promise.needs.iter().any(Vec::is_empty) {
            return fault("got an alternative without facts".into());
        }
        if let Some(fact) = promise.needs.iter().flatten().find(|fact| !FACTS.contains(&fact.as_str())) {
            return fault(format!("got unknown fact {fact:?}"));
        }
        if !matches!(promise.state.as_deref(), None | Some("waived" | "not_kept")) {
            return fault("got a state other than null, waived or not_kept".into());
        }
    }
    Ok(())
}

/// Computes states, tiers and whether the caller accepts what is missing.
pub fn evaluate(promises: &[PlanPromise], facts: &FactSet, requested: Tier, accept: &[String]) -> Evaluation {
    let states: Vec<PromiseState> = promises.iter().map(|promise| state_of(promise, facts)).collect();
    let rows: Vec<(&PlanPromise, State)> = promises.iter().zip(states.iter().map(|s| s.state)).collect();
    let required: Vec<&(&PlanPromise, State)> = rows.iter().filter(|row| requires(row.0, requested, facts)).collect();
    let missing: Vec<String> = required.iter().filter(|row| row.1 != State::Kept).map(|row| row.0.id.clone()).collect();
    let effective_tier = highest(&rows, facts, |state| state == State::Kept);
    Evaluation {
        effective_tier,
        would_be: highest(&rows, facts, |state| state != State::NotKept),
        kept: required.len() - missing.len(),
        of: required.len(),
        accepted: effective_tier >= requested || covers(accept, &missing, effective_tier),
        missing,
        states,
    }
}

/// A state given by the plan stands, because it only ever weakens (`check`);
/// else the first alternative whose facts all hold keeps the promise.
fn state_of(promise: &PlanPromise, facts: &FactSet) -> PromiseState {
    let done = |alternative: &&Vec<String>| !alternative.is_empty() && alternative.iter().all(|fact| facts.has(fact));
    let given = match promise.state.as_deref() {
        None => None,
        Some("waived") => Some(State::Waived),
        Some(_) => Some(State::NotKept),
    };
    let (state, mechanism) = match (given, promise.needs.iter().find(done)) {
        (Some(state), _) => (state, Vec::new()),
        (None, Some(mechanism)) => (State::Kept, mechanism.clone()),
        (None, None) => (State::NotKept, Vec::new()),
    };
    let reason = match state {
        State::Kept => None,
        _ => promise.reason.clone().or_else(|| Some("mechanism_missing".to_owned())),
    };
    PromiseState { id: promise.id.clone(), state, mechanism, reason }
}

/// Rows that need namespaces count only where namespaces are the backend.
fn requires(promise: &PlanPromise, tier: Tier, facts: &FactSet) -> bool {
    (facts.namespaces || !promise.ns) && promise.tiers.iter().any(|name| name == tier.name())
}

/// The highest tier that is reached from below without a gap. A tier that lists
/// nothing is a gap: an empty list of promises must not be `strict`.
fn highest(rows: &[(&PlanPromise, State)], facts: &FactSet, good: impl Fn(State) -> bool) -> Tier {
    let reached = |tier: &Tier| {
        let mut required = rows.iter().filter(|row| requires(row.0, *tier, facts)).peekable();
        required.peek().is_some() && required.all(|row| good(row.1))
    };
    Tier::PROMISING.into_iter().take_while(reached).last().unwrap_or(Tier::Off)
}

/// A caller accepts by promise, or by a tier that is still reached. With
/// nothing missing and the tier not reached (no promises listed) only the tier counts.
fn covers(accept: &[String], missing: &[String], effective: Tier) -> bool {
    let by_tier = accept.iter().filter_map(|word| Tier::parse(word)).any(|tier| effective >= tier);
    by_tier || (!missing.is_empty() && missing.iter().all(|id| accept.contains(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&str] = &["standard", "guarded", "strict"];

    fn promise(id: &str, tiers: &[&str], needs: &[&[&str]]) -> PlanPromise {
        serde_json::from_value(serde_json::json!({
            "id": id, "tiers": tiers, "ns": false, "needs": needs, "state": null, "reason": null,
        }))
        .unwrap()
    }

    fn table() -> Vec<PlanPromise> {
        let mut invisible = promise("proc.invisible", ALL, &[&["pidns", "proc_fresh"]]);
        invisible.ns = true;
        vec![
            promise("net.policy", ALL, &[&["netns"], &["mounts"]]),
            invisible,
            promise("fs.credentials", &["guarded", "strict"], &[&["overlay_home"], &["snapshot_home"]]),
            promise("fs.home", &["strict"], &[&["mounts"]]),
        ]
    }

    fn facts(namespaces: bool, names: &[&'static str]) -> FactSet {
        let mut set = FactSet::new(namespaces);
        names.iter().for_each(|name| set.add(name));
        set
    }

    const WHOLE: &[&str] = &["mounts", "pidns", "proc_fresh", "snapshot_home"];

    #[test]
    fn all_facts_make_the_requested_tier_with_the_first_alternative_that_holds() {
        let result = evaluate(&table(), &facts(true, WHOLE), Tier::Strict, &[]);
        assert_eq!((result.effective_tier, result.would_be), (Tier::Strict, Tier::Strict));
        assert_eq!((result.kept, result.of, result.accepted), (4, 4, true));
        assert_eq!(result.states[0].mechanism, ["mounts"]);
        assert_eq!(result.states[2].mechanism, ["snapshot_home"]);
    }

    #[test]
    fn a_missing_fact_lowers_the_tier_and_refuses_without_accept() {
        let facts = facts(true, &["mounts", "pidns", "proc_fresh"]);
        let result = evaluate(&table(), &facts, Tier::Strict, &[]);
        assert_eq!((result.effective_tier, result.would_be), (Tier::Standard, Tier::Standard));
        assert_eq!(result.missing, ["fs.credentials"]);
        assert_eq!(result.states[2].reason.as_deref(), Some("mechanism_missing"));
        assert!(!result.accepted);
        let accepts = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            evaluate(&table(), &facts, Tier::Strict, &words).accepted
        };
        assert!(accepts(&["fs.credentials"]) && accepts(&["standard"]));
        assert!(!accepts(&["guarded"]) && !accepts(&["fs.home"]) && !accepts(&["strict"]));
    }

    #[test]
    fn accept_must_cover_every_missing_promise() {
        let accept = ["fs.credentials".to_owned()];
        assert!(!evaluate(&table(), &facts(true, &["mounts"]), Tier::Strict, &accept).accepted);
    }

    #[test]
    fn namespace_rows_count_only_under_namespaces() {
        let names = &["mounts", "snapshot_home"];
        assert_eq!(evaluate(&table(), &facts(true, names), Tier::Strict, &[]).effective_tier, Tier::Off);
        let other = evaluate(&table(), &facts(false, names), Tier::Strict, &[]);
        assert_eq!((other.effective_tier, other.kept, other.of), (Tier::Strict, 3, 3));
        assert_eq!(other.states[1].state, State::NotKept);
    }

    #[test]
    fn a_waiver_shows_what_the_tier_would_be() {
        let mut table = table();
        table[0].state = Some("waived".into());
        table[0].reason = Some("grant_docker".into());
        let result = evaluate(&table, &facts(true, WHOLE), Tier::Strict, &[]);
        assert_eq!((result.effective_tier, result.would_be), (Tier::Off, Tier::Strict));
        assert_eq!(result.states[0].state, State::Waived);
        assert_eq!(result.states[0].reason.as_deref(), Some("grant_docker"));
        assert_eq!((result.kept, result.of, result.accepted), (3, 4, false));
    }

    #[test]
    fn a_state_not_kept_given_by_the_plan_stands_even_when_facts_hold() {
        let mut table = table();
        table[3].state = Some("not_kept".into());
        assert_eq!(evaluate(&table, &facts(true, WHOLE), Tier::Strict, &[]).effective_tier, Tier::Guarded);
    }

    #[test]
    fn no_promises_is_no_tier() {
        let result = evaluate(&[], &facts(true, WHOLE), Tier::Strict, &["fs.home".into()]);
        assert_eq!((result.effective_tier, result.accepted), (Tier::Off, false));
        assert!(evaluate(&[], &facts(true, &[]), Tier::Off, &[]).accepted);
    }

    #[test]
    fn rows_that_could_be_kept_by_accident_are_refused() {
        assert!(check(&table()).is_ok());
        assert!(check(&[promise("a", ALL, &[&[]])]).is_err());
        assert!(check(&[promise("a", ALL, &[&["mount"]])]).is_err());
        assert!(check(&[promise("a", &["off"], &[&["mounts"]])]).is_err());
        assert!(check(&[promise("a", &["cc"], &[&["mounts"]])]).is_err());
        assert!(check(&[promise("a", ALL, &[]), promise("a", ALL, &[])]).is_err());
        let mut claimed = promise("a", ALL, &[]);
        claimed.state = Some("kept".into());
        assert!(check(&[claimed]).is_err());
    }
}
