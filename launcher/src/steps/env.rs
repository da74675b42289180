//! Step 9: the environment of the command.
//!
//! Owns: which variables cross into the box. Order of the rules, first wins:
//! set by descriptor, set by plan, `keep`, then in mode `allow` everything else
//! is dropped, in mode `deny` names that match `drop` and values that hold a
//! known token shape are dropped. Fails closed: a malformed policy or item
//! is an error, a name seen twice counts once. The Python side has the same
//! semantics (`stockade.environment`) and is tested against this one.
//! Next: caps.rs.

mod shapes;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::CString;
use std::fmt;

use serde::Deserialize;

use crate::glob::{matches, Case};
pub use shapes::Shape;
use shapes::Shapes;

/// One variable: name and value as the kernel holds them, bytes without NUL.
pub type Pair = (Vec<u8>, Vec<u8>);

/// `env` of the plan.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvPolicy {
    pub mode: Mode,
    pub keep: Vec<String>,
    pub drop: Vec<String>,
    pub drop_values: Vec<Shape>,
    pub set: BTreeMap<String, String>,
}

/// What happens to a variable that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Dropped: the policy is an allow-list.
    Allow,
    /// Kept, unless `drop` or `drop_values` speaks against it.
    Deny,
}

/// The result of step 9.
#[derive(Debug)]
pub struct Filtered {
    /// `NAME=VALUE` items for exec.
    pub env: Vec<CString>,
    /// Names in `env`, sorted.
    pub kept: Vec<String>,
    /// Inherited names that were withheld, sorted. A name is here and in `kept`
    /// only when the inherited environment held it twice.
    pub dropped: Vec<String>,
}

/// Why no environment could be made (`env_invalid`). Never holds a value.
#[derive(Debug, PartialEq, Eq)]
pub struct EnvError {
    pub object: String,
    pub message: String,
}

impl EnvError {
    fn new(object: impl Into<String>, message: &str) -> Self {
        let message = message.to_owned();
        Self { object: object.into(), message }
    }
}

impl fmt::Display for EnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.message)
    }
}

impl std::error::Error for EnvError {}

impl EnvPolicy {
    /// Refuses patterns, shapes and names that cannot mean anything.
    pub fn check(&self) -> Result<(), EnvError> {
        for pattern in self.keep.iter().chain(&self.drop) {
            if pattern.is_empty() || pattern.contains(['\0', '=']) {
                return Err(EnvError::new(
                    format!("env pattern {pattern:?}"),
                    "got an empty pattern or one with '=' or NUL, expected a variable name with optional '*'",
                ));
            }
        }
        for (name, value) in &self.set {
            check_item("env set", name.as_bytes(), value.as_bytes())?;
        }
        Shapes::compile(&self.drop_values).map(drop)
    }
}

/// Splits the content of `--setenv-fd`: NUL-terminated `NAME=VALUE` items.
/// The last terminator may be missing. A name given twice is an error: two
/// readers would not agree which one counts.
pub fn parse_items(block: &[u8]) -> Result<Vec<Pair>, EnvError> {
    let body = block.strip_suffix(b"\0").unwrap_or(block);
    if body.is_empty() && block.len() <= 1 {
        return Ok(Vec::new());
    }
    let mut seen = HashSet::new();
    let mut pairs = Vec::new();
    for (index, item) in body.split(|byte| *byte == 0).enumerate() {
        let at = format!("setenv item {index}");
        let Some(equals) = item.iter().position(|byte| *byte == b'=') else {
            return Err(EnvError::new(at, "got no '=', expected NAME=VALUE"));
        };
        let (name, value) = (&item[..equals], &item[equals + 1..]);
        check_item(&at, name, value)?;
        if !seen.insert(name) {
            return Err(EnvError::new(at, "got a name for the second time, expected each name once"));
        }
        pairs.push((name.to_vec(), value.to_vec()));
    }
    Ok(pairs)
}

/// Decides every variable and builds the environment block of the command.
///
/// `inherited` is the caller's environment in its own order; of a name that
/// occurs twice the first counts and the others are dropped, because `getenv`
/// and shells differ in which one they read, and a filter that judged only one
/// of them would let the other through.
pub fn filter(policy: &EnvPolicy, inherited: &[Pair], set_fd: &[Pair]) -> Result<Filtered, EnvError> {
    policy.check()?;
    let given = merge_given(policy, set_fd)?;
    let rules = Rules::compile(policy)?;
    let mut out = Builder::default();
    let mut seen: HashSet<&[u8]> = HashSet::with_capacity(inherited.len());
    for (name, value) in inherited {
        if !seen.insert(name) {
            out.dropped.insert(show_name(name));
        } else if given.contains_key(name.as_slice()) {
            continue;
        } else if is_item(name, value) && rules.keeps(name, value) {
            out.keep(name, value);
        } else {
            out.dropped.insert(show_name(name));
        }
    }
    for (name, value) in given {
        out.keep(name, value);
    }
    Ok(out.finish())
}

/// Values that the caller or the plan sets; the descriptor wins.
fn merge_given<'a>(policy: &'a EnvPolicy, set_fd: &'a [Pair]) -> Result<BTreeMap<&'a [u8], &'a [u8]>, EnvError> {
    let mut given: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
    for (name, value) in &policy.set {
        given.insert(name.as_bytes(), value.as_bytes());
    }
    let mut from_fd = HashSet::new();
    for (name, value) in set_fd {
        check_item("setenv", name, value)?;
        if !from_fd.insert(name) {
            return Err(EnvError::new("setenv", "got a name for the second time, expected each name once"));
        }
        given.insert(name, value);
    }
    Ok(given)
}

#[derive(Default)]
struct Builder {
    env: Vec<CString>,
    kept: BTreeSet<String>,
    dropped: BTreeSet<String>,
}

impl Builder {
    /// Adds an item that was checked to hold no NUL.
    fn keep(&mut self, name: &[u8], value: &[u8]) {
        let mut item = Vec::with_capacity(name.len() + value.len() + 2);
        item.extend_from_slice(name);
        item.push(b'=');
        item.extend_from_slice(value);
        match CString::new(item) {
            Ok(item) => {
                self.env.push(item);
                self.kept.insert(show_name(name));
            }
            Err(_) => {
                self.dropped.insert(show_name(name));
            }
        }
    }

    fn finish(self) -> Filtered {
        Filtered { env: self.env, kept: self.kept.into_iter().collect(), dropped: self.dropped.into_iter().collect() }
    }
}

struct Rules<'a> {
    policy: &'a EnvPolicy,
    keep: Names<'a>,
    drop: Names<'a>,
    shapes: Shapes<'a>,
}

impl<'a> Rules<'a> {
    fn compile(policy: &'a EnvPolicy) -> Result<Self, EnvError> {
        // Names are dropped in any case: programs on several systems read
        // `http_proxy` and `HTTP_PROXY` alike, and so do libraries for tokens.
        let (keep, drop) = (Names::new(&policy.keep, Case::Exact), Names::new(&policy.drop, Case::Fold));
        Ok(Rules { policy, keep, drop, shapes: Shapes::compile(&policy.drop_values)? })
    }

    fn keeps(&self, name: &[u8], value: &[u8]) -> bool {
        if self.keep.hold(name) {
            return true;
        }
        self.policy.mode == Mode::Deny && !self.drop.hold(name) && !self.shapes.occur_in(value)
    }
}

/// Several hundred patterns against every variable: the common shapes are told
/// apart once, letters are folded once, and no table is built that costs more
/// than it saves.
struct Names<'a> {
    patterns: Vec<Pattern<'a>>,
    case: Case,
}

enum Pattern<'a> {
    Plain(Cow<'a, [u8]>),
    Prefix(Cow<'a, [u8]>),
    Suffix(Cow<'a, [u8]>),
    Inside(Cow<'a, [u8]>),
    Other(Cow<'a, [u8]>),
}

impl<'a> Names<'a> {
    fn new(list: &'a [String], case: Case) -> Self {
        Names { patterns: list.iter().map(|p| Pattern::new(p.as_bytes(), case)).collect(), case }
    }

    fn hold(&self, name: &[u8]) -> bool {
        let name = fold(name, self.case);
        self.patterns.iter().any(|p| p.holds(&name))
    }
}

impl<'a> Pattern<'a> {
    fn new(text: &'a [u8], case: Case) -> Self {
        let stars = text.iter().filter(|b| **b == b'*').count();
        match (stars, text) {
            (0, _) => Pattern::Plain(fold(text, case)),
            (1, [head @ .., b'*']) => Pattern::Prefix(fold(head, case)),
            (1, [b'*', tail @ ..]) => Pattern::Suffix(fold(tail, case)),
            (2, [b'*', middle @ .., b'*']) if !middle.is_empty() => Pattern::Inside(fold(middle, case)),
            _ => Pattern::Other(fold(text, case)),
        }
    }

    /// `name` is folded like the pattern.
    fn holds(&self, name: &[u8]) -> bool {
        match self {
            Pattern::Plain(want) => name == want.as_ref(),
            Pattern::Prefix(head) => name.starts_with(head),
            Pattern::Suffix(tail) => name.ends_with(tail),
            Pattern::Inside(middle) => {
                name.windows(middle.len()).any(|part| part[0] == middle[0] && part == middle.as_ref())
            }
            Pattern::Other(pattern) => matches(pattern, name, Case::Exact),
        }
    }
}

fn fold(text: &[u8], case: Case) -> Cow<'_, [u8]> {
    match case {
        Case::Fold if text.iter().any(u8::is_ascii_lowercase) => Cow::Owned(text.to_ascii_uppercase()),
        _ => Cow::Borrowed(text),
    }
}

/// A pair that exec can carry: a name, no `=` in it, no NUL anywhere.
fn is_item(name: &[u8], value: &[u8]) -> bool {
    !name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0)
}

fn check_item(at: &str, name: &[u8], value: &[u8]) -> Result<(), EnvError> {
    if is_item(name, value) {
        return Ok(());
    }
    // The name is shown, the value never: it may be the secret.
    let object = format!("{at} {}", show_name(name));
    Err(EnvError::new(object, "got an empty name, or '=' or NUL in it, expected NAME=VALUE"))
}

/// A name for records: UTF-8 as it is, other bytes as `\xNN`.
fn show_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn policy(mode: &str, keep: &[&str], drop: &[&str]) -> EnvPolicy {
        serde_json::from_value(serde_json::json!({
            "mode": mode, "keep": keep, "drop": drop, "set": {},
            "drop_values": [
                {"name": "github", "prefix": "ghp_", "charset": "A-Za-z0-9_", "min_len": 36},
                {"name": "openai", "prefix": "sk-", "charset": "A-Za-z0-9_-", "min_len": 20},
            ],
        }))
        .unwrap()
    }

    fn pair(name: &str, value: &str) -> Pair {
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    fn items(result: &Filtered) -> Vec<&str> {
        result.env.iter().map(|item| item.to_str().unwrap()).collect()
    }

    #[test]
    fn deny_mode_drops_names_in_any_case_and_values_that_hold_a_token() {
        let token = format!("url=https://x:ghp_{}@host", "a".repeat(36));
        let short = format!("ghp_{}", "a".repeat(35));
        let inherited = [
            pair("PATH", "/bin"),
            pair("aws_secret_x", "1"),
            pair("NPM_TOKEN", "1"),
            pair("REMOTE", &token),
            pair("NOTE", &short),
            pair("AWS_SECRET_KEEP", "2"),
        ];
        let policy = policy("deny", &["AWS_SECRET_KEEP"], &["AWS_SECRET*", "*_token"]);
        let result = filter(&policy, &inherited, &[]).unwrap();
        assert_eq!(result.kept, ["AWS_SECRET_KEEP", "NOTE", "PATH"]);
        assert_eq!(result.dropped, ["NPM_TOKEN", "REMOTE", "aws_secret_x"]);
    }

    #[test]
    fn allow_mode_keeps_only_named_variables_and_their_exact_case() {
        let inherited = [pair("LC_ALL", "C"), pair("lc_all", "C"), pair("HOME", "/h"), pair("X", "1")];
        let result = filter(&policy("allow", &["LC_*", "HOME"], &["HOME"]), &inherited, &[]).unwrap();
        assert_eq!(items(&result), ["LC_ALL=C", "HOME=/h"]);
        assert_eq!(result.dropped, ["X", "lc_all"]);
    }

    #[test]
    fn the_descriptor_beats_the_plan_which_beats_the_inherited_value() {
        let mut policy = policy("allow", &["A", "B", "C"], &[]);
        policy.set = [("A".into(), "plan".into()), ("B".into(), "plan".into())].into();
        let inherited = [pair("A", "in"), pair("B", "in"), pair("C", "in")];
        let result = filter(&policy, &inherited, &[pair("A", "fd"), pair("LD_PRELOAD", "named")]).unwrap();
        assert_eq!(items(&result), ["C=in", "A=fd", "B=plan", "LD_PRELOAD=named"]);
        assert!(result.dropped.is_empty());
    }

    #[test]
    fn of_a_name_that_occurs_twice_only_the_first_is_judged_and_passed() {
        let inherited = [pair("A", "first"), pair("A", "second"), pair("TOKEN", "x"), pair("TOKEN", "y")];
        let result = filter(&policy("deny", &[], &["TOKEN"]), &inherited, &[]).unwrap();
        assert_eq!(items(&result), ["A=first"]);
        assert_eq!((result.kept, result.dropped), (vec!["A".into()], vec!["A".into(), "TOKEN".into()]));
    }

    #[test]
    fn odd_bytes_pass_and_odd_names_do_not() {
        let inherited = [(b"N\xff".to_vec(), b"\xfe\xfd".to_vec()), pair("", "x"), pair("=C:", "x")];
        let result = filter(&policy("deny", &[], &[]), &inherited, &[]).unwrap();
        assert_eq!(result.env, [CString::new(b"N\xff=\xfe\xfd".to_vec()).unwrap()]);
        assert_eq!(result.kept, ["N\\xff"]);
        assert_eq!(result.dropped, ["", "=C:"]);
    }

    #[test]
    fn a_bad_setenv_item_is_an_error_that_never_shows_the_value() {
        assert_eq!(parse_items(b"A=1\0B=\0").unwrap(), [pair("A", "1"), pair("B", "")]);
        assert_eq!(parse_items(b"A=x=y").unwrap(), [pair("A", "x=y")]);
        assert_eq!(parse_items(b"").unwrap(), []);
        for block in [&b"s3cret\0"[..], b"=s3cret\0", b"A=1\0\0", b"A=s3cret\0A=2\0", b"\0\0"] {
            let error = parse_items(block).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
        let nul = (b"A".to_vec(), b"s3cret\0".to_vec());
        let error = filter(&policy("deny", &[], &[]), &[], &[nul]).unwrap_err();
        assert!(!error.to_string().contains("s3cret"));
    }

    #[test]
    fn a_policy_that_cannot_mean_anything_is_refused() {
        let bad_shape = |prefix: &str, charset: &str| {
            let mut policy = policy("deny", &[], &[]);
            policy.drop_values[0].prefix = prefix.into();
            policy.drop_values[0].charset = charset.into();
            policy.check().is_err()
        };
        assert!(bad_shape("", "a-z") && bad_shape("g", "a-z") && bad_shape("gh", ""));
        assert!(bad_shape("gh", "z-a") && bad_shape("gh", "é"));
        assert!(policy("deny", &[""], &[]).check().is_err());
        assert!(policy("deny", &[], &["A=B"]).check().is_err());
        let unknown = r#"{"mode":"deny","keep":[],"drop":[],"drop_values":[],"set":{},"x":1}"#;
        assert!(serde_json::from_str::<EnvPolicy>(unknown).is_err());
    }

    #[test]
    fn a_huge_or_hostile_environment_stays_cheap() {
        let drop: Vec<String> = (0..120).map(|n| format!("SECRET{n}*")).collect();
        let drop: Vec<&str> = drop.iter().map(String::as_str).collect();
        let mut inherited: Vec<Pair> = (0..5000).map(|n| pair(&format!("VAR_{n}"), "/usr/lib/x")).collect();
        inherited.push(pair("BIG", &"ghp_".repeat(25_000)));
        inherited.push(pair(&"a".repeat(100_000), &"sk-".repeat(33_000)));
        let policy = policy("deny", &["*a*a*b"], &drop);
        let start = Instant::now();
        let result = filter(&policy, &inherited, &[]).unwrap();
        let spent = start.elapsed();
        eprintln!("5,002 variables: {spent:?}");
        // `ghp_ghp_…` is one long run of the charset, so it is a token.
        assert_eq!(result.dropped.len(), 2);
        assert!(spent < Duration::from_secs(1), "{spent:?}");
    }
}
