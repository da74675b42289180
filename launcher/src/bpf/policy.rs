//! The seccomp policy as data: reads `seccomp/<arch>.toml` and `numbers-<arch>.toml`.
//!
//! Owns: names, groups, rules, and what they mean ([`Filter::answer`] is the plain
//! reading that the compiled program is tested against).
//!
//! Fails closed: an unknown key, name or filter, a call that is decided twice or not
//! at all, a rule on a call that is not allowed, or a rule that can never hold stops
//! the build.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

const SCHEMA: &str = "stockade.seccomp.v1";

/// Answer of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Action {
    Allow,
    /// The call is not run; 0 means it "succeeded".
    Errno(u16),
    /// The call stops for the tracer of its process; without one it fails with ENOSYS.
    Trace,
}

impl Action {
    pub const ALLOW: Action = Action::Allow;
    pub const ENOSYS: Action = Action::Errno(38);

    /// SECCOMP_RET_ALLOW, SECCOMP_RET_TRACE, or SECCOMP_RET_ERRNO with the errno in the low half.
    pub fn seccomp_value(self) -> u32 {
        match self {
            Action::Allow => 0x7fff_0000,
            Action::Errno(errno) => 0x0005_0000 | u32::from(errno),
            Action::Trace => 0x7ff0_0000,
        }
    }
}

impl TryFrom<String> for Action {
    type Error = String;

    /// Errno numbers are the same on x86_64 and aarch64 (asm-generic/errno.h).
    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "allow" => Ok(Action::Allow),
            "trace" => Ok(Action::Trace),
            "done" => Ok(Action::Errno(0)),
            "EPERM" => Ok(Action::Errno(1)),
            "ENOSYS" => Ok(Action::ENOSYS),
            "EPROTONOSUPPORT" => Ok(Action::Errno(93)),
            "EAFNOSUPPORT" => Ok(Action::Errno(97)),
            _ => Err(format!("unknown action {name:?}")),
        }
    }
}

/// A test on one argument. All but `Beyond` and `Null` look at the low 32 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Test {
    Any {
        arg: u32,
        any: u32,
    },
    Beyond {
        arg: u32,
        beyond: u32,
    },
    In {
        arg: u32,
        mask: Option<u32>,
        #[serde(rename = "in")]
        values: Vec<u32>,
    },
    NotIn {
        arg: u32,
        mask: Option<u32>,
        #[serde(rename = "not_in")]
        values: Vec<u32>,
    },
    Null {
        arg: u32,
        null: bool,
    },
}

impl Test {
    pub fn arg(&self) -> u32 {
        match self {
            Test::Any { arg, .. } | Test::Beyond { arg, .. } | Test::In { arg, .. } => *arg,
            Test::NotIn { arg, .. } | Test::Null { arg, .. } => *arg,
        }
    }

    #[cfg(test)]
    pub fn holds(&self, args: &[u64; 6]) -> bool {
        let value = args[self.arg() as usize];
        let low = value as u32;
        match self {
            Test::Any { any, .. } => low & any != 0,
            Test::Beyond { beyond, .. } => value & !u64::from(*beyond) != 0,
            Test::In { mask, values, .. } => values.contains(&(low & mask.unwrap_or(u32::MAX))),
            Test::NotIn { mask, values, .. } => !values.contains(&(low & mask.unwrap_or(u32::MAX))),
            Test::Null { null, .. } => (value == 0) == *null,
        }
    }

    fn check(&self) -> Result<(), String> {
        let reachable = match self {
            Test::Any { any, .. } => *any != 0,
            Test::In { mask, values, .. } | Test::NotIn { mask, values, .. } => {
                !values.is_empty() && values.iter().all(|v| v & !mask.unwrap_or(u32::MAX) == 0)
            }
            Test::Beyond { .. } | Test::Null { .. } => true,
        };
        match reachable && self.arg() < 6 {
            true => Ok(()),
            false => Err(format!("test {self:?} names no argument or cannot hold")),
        }
    }
}

/// Narrows an allowed call: when all tests hold, `action` is the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    pub action: Action,
    pub when: Vec<Test>,
}

/// What is done for one call.
#[derive(Clone, Debug)]
pub struct Call {
    pub action: Action,
    pub rules: Vec<Rule>,
}

/// One filter, ready to compile.
#[derive(Clone, Debug)]
pub struct Filter {
    pub name: String,
    pub audit_arch: u32,
    pub otherwise: Action,
    pub calls: BTreeMap<u32, Call>,
}

impl Filter {
    /// The answer by the plain reading of the policy, without the compiler's tree.
    #[cfg(test)]
    pub fn answer(&self, audit_arch: u32, nr: u32, args: &[u64; 6]) -> Action {
        if audit_arch != self.audit_arch {
            return Action::ENOSYS;
        }
        if nr == super::NO_CALL {
            return Action::Allow;
        }
        let Some(call) = self.calls.get(&nr) else { return self.otherwise };
        let rule = call.rules.iter().find(|rule| rule.when.iter().all(|test| test.holds(args)));
        rule.map_or(call.action, |rule| rule.action)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    schema: String,
    audit_arch: u32,
    filter: Vec<FilterRow>,
    group: Vec<GroupRow>,
    rule: Vec<RuleRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterRow {
    name: String,
    why: String,
    otherwise: Action,
    /// Every call of the number table must be decided.
    complete: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupRow {
    name: String,
    why: String,
    action: Action,
    #[serde(default = "command_filters")]
    filters: Vec<String>,
    calls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRow {
    name: String,
    why: String,
    action: Action,
    #[serde(default = "command_filters")]
    filters: Vec<String>,
    calls: Vec<String>,
    when: Vec<Test>,
}

fn command_filters() -> Vec<String> {
    ["default", "default-root", "landlock", "landlock-offline"].map(String::from).to_vec()
}

/// System call numbers of one architecture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Those that the libc crate names too; `build.rs` has the compiler compare them.
    #[serde(rename = "numbers")]
    pub in_libc: BTreeMap<String, u32>,
    #[serde(rename = "numbers_without_libc")]
    without_libc: BTreeMap<String, u32>,
}

impl Numbers {
    pub fn parse(text: &str) -> Result<Self, String> {
        let numbers: Numbers = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut seen = BTreeSet::new();
        for (name, nr) in numbers.iter() {
            if !seen.insert(nr) {
                return Err(format!("{name}: number {nr} is given twice"));
            }
        }
        Ok(numbers)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.in_libc.iter().chain(&self.without_libc).map(|(name, nr)| (name.as_str(), *nr))
    }

    pub fn get(&self, name: &str) -> Result<u32, String> {
        let nr = self.in_libc.get(name).or_else(|| self.without_libc.get(name));
        nr.copied().ok_or_else(|| format!("{name}: no such call in the number table"))
    }
}

/// Reads the policy: all filters, in file order.
pub fn parse(policy: &str, numbers: &Numbers) -> Result<Vec<Filter>, String> {
    let file: PolicyFile = toml::from_str(policy).map_err(|e| e.to_string())?;
    if file.schema != SCHEMA {
        return Err(format!("schema: got {:?}, expected {SCHEMA:?}", file.schema));
    }
    check_rows(&file)?;
    file.filter.iter().map(|row| filter(&file, row, numbers)).collect()
}

/// Each row says why, and names filters that exist.
fn check_rows(file: &PolicyFile) -> Result<(), String> {
    let known: BTreeSet<&str> = file.filter.iter().map(|row| row.name.as_str()).collect();
    let filters = file.filter.iter().map(|row| (&row.name, &row.why, &[][..]));
    let groups = file.group.iter().map(|row| (&row.name, &row.why, &row.filters[..]));
    let rules = file.rule.iter().map(|row| (&row.name, &row.why, &row.filters[..]));
    for (name, why, used) in filters.chain(groups).chain(rules) {
        if why.trim().is_empty() {
            return Err(format!("{name}: no reason given"));
        }
        if let Some(unknown) = used.iter().find(|f| !known.contains(f.as_str())) {
            return Err(format!("{name}: no filter {unknown:?}"));
        }
    }
    Ok(())
}

fn filter(file: &PolicyFile, row: &FilterRow, numbers: &Numbers) -> Result<Filter, String> {
    let mut calls = BTreeMap::new();
    for group in file.group.iter().filter(|group| group.filters.contains(&row.name)) {
        for name in &group.calls {
            let call = Call { action: group.action, rules: Vec::new() };
            if calls.insert(numbers.get(name)?, call).is_some() {
                return Err(format!("filter {}: {name} is decided twice", row.name));
            }
        }
    }
    for rule in file.rule.iter().filter(|rule| rule.filters.contains(&row.name)) {
        add_rule(&mut calls, rule, numbers)?;
    }
    let undecided = numbers.iter().find(|(_, nr)| !calls.contains_key(nr));
    if let Some((name, _)) = undecided.filter(|_| row.complete) {
        return Err(format!("filter {}: {name} is not decided", row.name));
    }
    Ok(Filter { name: row.name.clone(), audit_arch: file.audit_arch, otherwise: row.otherwise, calls })
}

fn add_rule(calls: &mut BTreeMap<u32, Call>, row: &RuleRow, numbers: &Numbers) -> Result<(), String> {
    if row.when.is_empty() || row.calls.is_empty() {
        return Err(format!("rule {}: no tests or no calls", row.name));
    }
    row.when.iter().try_for_each(Test::check).map_err(|e| format!("rule {}: {e}", row.name))?;
    for name in &row.calls {
        match calls.get_mut(&numbers.get(name)?) {
            Some(call) if call.action == Action::Allow => {
                call.rules.push(Rule { action: row.action, when: row.when.clone() });
            }
            _ => return Err(format!("rule {}: {name} is not an allowed call", row.name)),
        }
    }
    Ok(())
}
