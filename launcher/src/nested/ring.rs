//! What a box keeps around all that is started inside it.
//!
//! Owns the way from an outer box to an inner one: promises, Landlock rules, filters, limits and
//! network. All of it is taken from what the outer box was made with, nothing from the request,
//! so an inner plan can only take away. Whoever asked made the inner plan, so what it promises beyond
//! the box around is its own word: it is told so in its receipt, and nobody else is told of it.
//! Next: nested.rs (who applies it), promises.rs.

use std::collections::BTreeSet;

use crate::facts::Seen;
use crate::paths::within;
use crate::plan::{Backend, Limits, Net, Plan, PlanPromise, Row};
use crate::promises::{Evaluation, FactSet, PromiseState, State, Tier};
use crate::report::Refusal;
use crate::session;
use crate::steps::landlock::{self, Rules};

/// What a box may do, as its record lists it; src/stockade/host/within.py compares a request with it.
const ALLOWED: [&str; 7] = ["env", "read", "write", "sockets", "devices", "allow", "limits"];
/// Of a view that is made from nothing, which is seen in the plan's rows.
const ALLOW_LISTED: [&str; 2] = ["fs.home", "fs.system"];
/// Behind a promise that a program inside makes to itself.
const OWN_WORD: &str = "by the plan of the program that asked";

/// The outer box, as its supervisor made it.
#[derive(Debug, Clone)]
pub struct Ring {
    /// Kept by what is known outside: that of the outermost box or less.
    pub tier: Tier,
    /// Promises of that kind.
    pub kept: Vec<String>,
    /// What the outermost box was allowed, and with it the most that one in it can be.
    pub allowed: serde_json::Map<String, serde_json::Value>,
    pub promises: Vec<PlanPromise>,
    /// Promises of the outer box's own tier that it does not keep.
    pub lost: Vec<String>,
    pub facts: FactSet,
    pub net: Net,
    pub limits: Vec<Limits>,
    /// Of the outermost box, whose user namespace all inside it lie in: together they have no more.
    pub processes: Option<u64>,
    pub filters: Vec<String>,
    pub landlock: Option<Rules>,
    /// The largest file system in memory that it has: none inside holds more.
    pub room_bytes: u64,
    /// Parts of /proc that are covered in every box.
    pub covers: BTreeSet<String>,
    /// Run ids, innermost first.
    pub chain: Vec<String>,
    /// The box of a root caller: its root is nobody to the kernel.
    pub shifted: bool,
}

impl Ring {
    /// What a box that was made by this plan, inside `outer` if there is one, keeps around others.
    /// `known`: without what rests on the word of the plan.
    pub fn of(
        plan: &Plan,
        outer: Option<&Ring>,
        told: &Evaluation,
        known: &Evaluation,
        run_id: &str,
        seen: Seen,
    ) -> Ring {
        let tier = session::requested(plan).unwrap_or(Tier::Off);
        let wanted = |id: &str| plan.promises.iter().any(|p| p.id == id && p.tiers.iter().any(|t| t == tier.name()));
        let lost = told.states.iter().filter(|s| s.state != State::Kept && (wanted(&s.id) || s.state == State::Waived));
        let kept = known.states.iter().filter(|s| s.state == State::Kept);
        let listed = plan.record.iter().filter(|(key, _)| ALLOWED.contains(&key.as_str()));
        let mut ring = Ring {
            tier: known.effective_tier,
            kept: kept.map(|s| s.id.clone()).collect(),
            allowed: listed.map(|(key, value)| (key.clone(), value.clone())).collect(),
            promises: plan.promises.clone(),
            lost: lost.map(|s| s.id.clone()).collect(),
            facts: session::facts(plan, outer, seen),
            net: plan.net,
            limits: vec![plan.limits.clone()],
            processes: plan.limits.processes,
            filters: vec![plan.seccomp.filter.clone()],
            landlock: landlock_of(plan, outer),
            room_bytes: room_of(plan),
            covers: plan.mounts.iter().flat_map(covers_of).cloned().collect(),
            chain: vec![run_id.to_string()],
            shifted: matches!(plan.ids, crate::plan::Ids::Shifted { .. }),
        };
        if let Some(outer) = outer {
            ring.promises = outer.promises.clone();
            ring.allowed = outer.allowed.clone();
            ring.lost.extend(outer.lost.iter().cloned());
            ring.net = if outer.net == Net::None { Net::None } else { plan.net };
            ring.limits = vec![outer.in_force(&plan.limits)];
            ring.processes = outer.processes;
            ring.room_bytes = ring.room_bytes.min(outer.room_bytes);
            ring.covers.extend(outer.covers.iter().cloned());
            ring.filters.extend(outer.filters.iter().cloned());
            ring.filters.sort();
            ring.filters.dedup();
            ring.chain.extend(outer.chain.iter().cloned());
            ring.shifted = outer.shifted;
        }
        ring
    }

    /// Takes from an inner plan what the outer box has not: memory behind file systems, and open parts of /proc.
    pub fn bound(&self, plan: &mut Plan) {
        for row in &mut plan.mounts {
            match row {
                Row::Tmpfs { size_bytes: size, .. } | Row::Dev { shm_size_bytes: size, .. } => {
                    *size = self.room_bytes.min(*size);
                }
                Row::Proc { covers, .. } => {
                    let more: Vec<String> = self.covers.iter().filter(|name| !covers.contains(name)).cloned().collect();
                    covers.extend(more);
                }
                _ => {}
            }
        }
    }

    /// The limits of a box inside that was made with these.
    pub fn in_force(&self, asked: &Limits) -> Limits {
        self.limits.iter().fold(asked.clone(), |limits, around| tighter(around, &limits))
    }

    /// The promises of an inner plan: rows that the outer box does not know count for nothing, what it
    /// lost stays lost, and a promise needs what both plans say that it needs.
    pub fn promises(&self, plan: &Plan) -> Vec<PlanPromise> {
        self.promises.iter().map(|known| self.promise(known, plan)).collect()
    }

    /// The same without what rests on the plan alone: what the box around keeps holds in all of it.
    pub fn known(&self, plan: &Plan) -> Vec<PlanPromise> {
        let mut rows = self.promises(plan);
        for row in rows.iter_mut().filter(|row| row.state.is_none() && !self.kept.contains(&row.id)) {
            (row.state, row.reason) = (Some("not_kept".to_string()), Some(OWN_WORD.to_string()));
        }
        rows
    }

    /// Says in the receipt of who asked which promises are its own word.
    pub fn mark(&self, states: &mut [PromiseState]) {
        for row in states.iter_mut().filter(|row| row.state == State::Kept && !self.kept.contains(&row.id)) {
            row.reason = Some(OWN_WORD.to_string());
        }
    }

    fn promise(&self, known: &PlanPromise, plan: &Plan) -> PlanPromise {
        let mut row = PlanPromise { state: None, reason: None, ..known.clone() };
        let told = plan.promises.iter().find(|row| row.id == known.id);
        let weaker = |why: &str| (Some("not_kept".to_string()), Some(why.to_string()));
        (row.state, row.reason) = match told {
            None => weaker("not in the plan"),
            Some(_) if self.lost.contains(&known.id) => weaker("not kept by the box around"),
            Some(told) if told.state.is_none() && ALLOW_LISTED.contains(&known.id.as_str()) && shows_all(plan) => {
                weaker("shows all of the box around")
            }
            Some(told) => (told.state.clone(), told.reason.clone()),
        };
        if let Some(told) = told {
            // Every pair of alternatives: one of each must hold.
            row.needs = vec![];
            for one in &known.needs {
                row.needs.extend(told.needs.iter().map(|two| both(one, two)));
            }
        }
        row
    }
}

fn shows_all(plan: &Plan) -> bool {
    let made = plan.mounts.first().is_some_and(|row| matches!(row, Row::Tmpfs { target, .. } if target == "/"));
    !made || plan.mounts.iter().any(|row| sources(row).contains(&"/"))
}

/// What either needs, each once, in the order of the first.
fn both(one: &[String], two: &[String]) -> Vec<String> {
    let more = two.iter().filter(|name| !one.contains(name));
    one.iter().chain(more).cloned().collect()
}

fn room_of(plan: &Plan) -> u64 {
    let sizes = plan.mounts.iter().filter_map(|row| match row {
        Row::Tmpfs { size_bytes: size, .. } | Row::Dev { shm_size_bytes: size, .. } => Some(*size),
        _ => None,
    });
    sizes.max().unwrap_or_default().min(plan.limits.memory_bytes.unwrap_or(u64::MAX))
}

fn covers_of(row: &Row) -> &[String] {
    match row {
        Row::Proc { covers, .. } => covers,
        _ => &[],
    }
}

/// The stricter of two limits, each by itself.
fn tighter(one: &Limits, two: &Limits) -> Limits {
    let least = |a: Option<u64>, b: Option<u64>| [a, b].into_iter().flatten().min();
    Limits {
        processes: least(one.processes, two.processes),
        files: least(one.files, two.files),
        cpu_time_s: least(one.cpu_time_s, two.cpu_time_s),
        memory_bytes: least(one.memory_bytes, two.memory_bytes),
        address_space_bytes: least(one.address_space_bytes, two.address_space_bytes),
        wall_ms: two.wall_ms,
    }
}

/// The one rule set that says what the plan's and the outer box's say together, in the plan's own
/// view: sixteen levels of Landlock are all that the kernel stacks.
pub fn landlock_of(plan: &Plan, outer: Option<&Ring>) -> Option<Rules> {
    let own = plan.landlock.as_ref().map(landlock::rules);
    let Some(outer) = outer.and_then(|ring| ring.landlock.as_ref()) else { return own };
    let all = || Rules { rules: vec![("/".into(), landlock::ALL)], ..outer.clone() };
    let own = own.unwrap_or_else(all);
    Some(Rules {
        abi: own.abi.max(outer.abi),
        scope_signal: own.scope_signal || outer.scope_signal,
        scope_abstract: own.scope_abstract || outer.scope_abstract,
        rules: narrowed(&own.rules, &outer.rules, &plan.mounts),
    })
}

type Rule = (String, u64);

/// Rights add up on the way down, so at each path that either set names the right is what both give there.
fn narrowed(own: &[Rule], outer: &[Rule], rows: &[Row]) -> Vec<Rule> {
    let mut paths: BTreeSet<String> = own.iter().map(|rule| rule.0.clone()).collect();
    for row in rows {
        paths.insert(row.target().to_string());
        for source in sources(row) {
            let below = outer.iter().filter(|rule| within(&rule.0, source));
            paths.extend(below.map(|rule| join(row.target(), rest(&rule.0, source))));
        }
    }
    let mut both: Vec<Rule> = vec![];
    // What is above comes first, and a right that it gives already needs no rule of its own.
    for path in paths {
        let rights = rights_at(own, &path) & outer_rights(outer, rows, &path);
        if rights & !rights_at(&both, &path) != 0 {
            both.push((path, rights));
        }
    }
    both
}

/// What the outer box allows at a path of the inner one: all in what the inner box makes for itself.
pub fn outer_rights(outer: &[Rule], rows: &[Row], path: &str) -> u64 {
    let shows = |row: &&Row| !matches!(row, Row::Seal { .. } | Row::Dir { .. }) && within(path, row.target());
    // Rows are sorted by depth, of two at one place the later lies on top.
    let Some(row) = rows.iter().rev().find(shows) else { return 0 };
    let rest = rest(path, row.target());
    sources(row).iter().fold(landlock::ALL, |rights, source| rights & rights_at(outer, &join(source, rest)))
}

fn sources(row: &Row) -> Vec<&str> {
    match row {
        Row::Bind { source, .. } | Row::Overlay { source, .. } => vec![source],
        Row::Cache { source, upper, .. } => source.as_deref().into_iter().chain([upper.as_str()]).collect(),
        _ => vec![],
    }
}

pub fn rights_at(rules: &[Rule], path: &str) -> u64 {
    rules.iter().filter(|rule| within(path, &rule.0)).fold(0, |rights, rule| rights | rule.1)
}

fn rest<'a>(inner: &'a str, outer: &str) -> &'a str {
    inner.strip_prefix(outer.trim_end_matches('/')).unwrap_or_default()
}

fn join(base: &str, rest: &str) -> String {
    match (base.trim_end_matches('/'), rest) {
        ("", "") => "/".to_string(),
        (base, rest) => format!("{base}{rest}"),
    }
}

/// A plan from inside may not ask for what only a caller outside can give.
pub fn check(plan: &Plan) -> Result<(), Refusal> {
    let invalid = |field: &str, why: &str| Err(Refusal::new("plan_invalid", field).detail(why));
    if plan.backend != Backend::Namespaces {
        return invalid("backend", "got another backend, expected namespaces: inside a box a box has its own");
    }
    if !matches!(plan.ids, crate::plan::Ids::Identity) {
        return invalid("ids", "got a map of ids, expected those of the box around");
    }
    if !plan.copyback.is_empty() || plan.persistence.iter().any(|one| one.quarantine.is_some()) {
        return invalid("persistence", "got files to move, expected none: inside a box there is no state home");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Kind;

    fn bind(source: &str, target: &str) -> Row {
        Row::Bind {
            source: source.into(),
            target: target.into(),
            attrs: vec![],
            kind: Kind::Any,
            recursive: true,
            optional: false,
            idmap: false,
            create: false,
            owner: None,
        }
    }

    fn tmpfs(target: &str) -> Row {
        Row::Tmpfs { target: target.into(), mode: "0755".into(), size_bytes: 1, attrs: vec![], create: true }
    }

    fn rules(list: &[(&str, u64)]) -> Vec<Rule> {
        list.iter().map(|(path, rights)| (path.to_string(), *rights)).collect()
    }

    #[test]
    fn a_bind_under_another_name_has_the_rights_of_its_source() {
        let (outer, rows) = (rules(&[("/", 1), ("/w", 3)]), [tmpfs("/"), bind("/w/sub", "/x"), bind("/etc", "/w")]);
        assert_eq!(outer_rights(&outer, &rows, "/x/f"), 3);
        assert_eq!(outer_rights(&outer, &rows, "/w/f"), 1);
        assert_eq!(outer_rights(&outer, &rows, "/tmp"), landlock::ALL);
    }

    #[test]
    fn neither_set_gains_by_the_other() {
        let own = rules(&[("/", 7)]);
        let outer = rules(&[("/", 1), ("/w", 3)]);
        let both = narrowed(&own, &outer, &[bind("/", "/")]);
        assert_eq!((rights_at(&both, "/etc"), rights_at(&both, "/w/f")), (1, 3));
        // What is given above already has no rule of its own.
        let rows = [bind("/", "/"), tmpfs("/tmp"), bind("/etc", "/etc"), bind("/w", "/w")];
        assert_eq!(narrowed(&own, &outer, &rows), rules(&[("/", 1), ("/tmp", 7), ("/w", 3)]));
        let strict = narrowed(&rules(&[("/w", 7)]), &outer, &[tmpfs("/"), bind("/w", "/w")]);
        assert_eq!((rights_at(&strict, "/"), rights_at(&strict, "/w/f")), (0, 3));
    }
}
