//! The command line of the launcher.
//!
//! Owns parsing; every option is spelled out, nothing has a default, and a word
//! that is not known refuses (`usage`).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

use crate::paths::within;
use crate::plan::canonical;
use crate::report::Refusal;

#[derive(Debug, Default)]
pub struct Args {
    pub plan_fd: Option<RawFd>,
    pub plan: Option<String>,
    pub plan_store: Option<String>,
    pub binds: BTreeMap<String, String>,
    pub report_fd: Option<RawFd>,
    pub spool: Option<String>,
    pub state_home: Option<String>,
    pub cwd: Option<String>,
    pub setenv_fd: Option<RawFd>,
    /// One byte of it is the go; until then nothing is made.
    pub go_fd: Option<RawFd>,
    pub timeout_ms: Option<u64>,
    pub caller_pidfd: Option<RawFd>,
    /// A regular file that takes a line for each name that the command uses.
    pub trace_fd: Option<RawFd>,
    pub version: bool,
    /// Inside a box: its supervisor is asked to do the rest.
    pub nest: bool,
    /// The plan only adds to what confines the caller already.
    pub tighten: bool,
    /// Nothing is said at the end that only tells.
    pub quiet: bool,
    /// Only this is asked: whether the file system there answers.
    pub look: Option<CString>,
    pub argv: Vec<CString>,
}

fn usage(object: &str, detail: &str) -> Refusal {
    Refusal::new("usage", object).detail(detail)
}

/// Parses everything after the program's own name.
pub fn parse(words: &[&CStr]) -> Result<Args, Refusal> {
    let mut args = Args::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let word = text(word)?;
        match word {
            "--" => {
                args.argv = rest.map(|w| (*w).to_owned()).collect();
                break;
            }
            "--version" => args.version = true,
            "--json" => {}
            "--nest" => args.nest = true,
            "--tighten" => args.tighten = true,
            "--quiet" => args.quiet = true,
            "--look" => {
                let path = rest.next().ok_or_else(|| usage(word, "got no value"))?;
                once(word, &mut args.look, (*path).to_owned())?;
            }
            _ => {
                let value = rest.next().ok_or_else(|| usage(word, "got no value"))?;
                option(&mut args, word, text(value)?)?;
            }
        }
    }
    check(args)
}

fn text(word: &CStr) -> Result<&str, Refusal> {
    word.to_str().map_err(|_| usage(&word.to_string_lossy(), "got bytes that are no UTF-8"))
}

fn option(args: &mut Args, name: &str, value: &str) -> Result<(), Refusal> {
    match name {
        "--plan-fd" => once(name, &mut args.plan_fd, number(name, value)?),
        "--plan" => once(name, &mut args.plan, value.to_string()),
        "--plan-store" => once(name, &mut args.plan_store, value.to_string()),
        "--report-fd" => once(name, &mut args.report_fd, number(name, value)?),
        "--spool" => once(name, &mut args.spool, value.to_string()),
        "--state-home" => once(name, &mut args.state_home, value.to_string()),
        "--cwd" => once(name, &mut args.cwd, path(value)?),
        "--setenv-fd" => once(name, &mut args.setenv_fd, number(name, value)?),
        "--go-fd" => once(name, &mut args.go_fd, number(name, value)?),
        "--timeout-ms" => once(name, &mut args.timeout_ms, number(name, value)?),
        "--caller-pidfd" => once(name, &mut args.caller_pidfd, number(name, value)?),
        "--trace-fd" => once(name, &mut args.trace_fd, number(name, value)?),
        "--bind" => bind(args, value),
        _ => Err(usage(name, "unknown option")),
    }
}

fn once<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(usage(name, "given twice")),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Refusal> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| usage(name, "expected a whole number"))
}

fn path(value: &str) -> Result<String, Refusal> {
    canonical(value).map_err(|_| usage(value, "expected a canonical absolute path"))?;
    Ok(value.to_string())
}

fn bind(args: &mut Args, value: &str) -> Result<(), Refusal> {
    let bad = |detail: &str| Refusal::new("bind_invalid", value).detail(detail);
    let (name, target) = value.split_once('=').ok_or_else(|| bad("expected NAME=PATH"))?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(bad("expected a name of letters, digits and _"));
    }
    canonical(target).map_err(|_| bad("expected a canonical absolute path"))?;
    match args.binds.insert(name.to_string(), target.to_string()) {
        None => Ok(()),
        Some(_) => Err(bad("given twice")),
    }
}

/// A stored plan lies in the state home, which no write root may touch: the compiler
/// refused that for the parameters it knew, and these are others.
fn off_the_state_home(args: &Args) -> Result<(), Refusal> {
    let Some((home, _)) = args.plan_store.as_deref().and_then(|store| store.rsplit_once('/')) else { return Ok(()) };
    match args.binds.values().find(|path| within(path, home) || within(home, path)) {
        Some(path) => Err(Refusal::new("bind_invalid", path.as_str()).detail("the state home lies in it, or above it")),
        None => Ok(()),
    }
}

fn check(args: Args) -> Result<Args, Refusal> {
    if args.version || args.look.is_some() {
        return Ok(args);
    }
    off_the_state_home(&args)?;
    let from_store = args.plan.is_some() && args.plan_store.is_some();
    if args.plan_fd.is_some() == from_store || args.plan.is_some() != args.plan_store.is_some() {
        return Err(usage("--plan", "expected --plan-fd N, or --plan DIGEST with --plan-store DIR"));
    }
    if args.argv.is_empty() || args.argv[0].is_empty() {
        return Err(usage("--", "expected a command after it"));
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Result<Args, Refusal> {
        let owned: Vec<CString> = words.iter().map(|w| CString::new(*w).unwrap()).collect();
        parse(&owned.iter().map(|w| w.as_c_str()).collect::<Vec<_>>())
    }

    #[test]
    fn a_complete_line_is_understood() {
        let args = run(&["--plan-fd", "5", "--bind", "ws=/a/b", "--", "ls", "-l"]).unwrap();
        assert_eq!((args.plan_fd, args.argv.len()), (Some(5), 2));
        assert_eq!(args.binds["ws"], "/a/b");
    }

    #[test]
    fn anything_odd_refuses() {
        for words in [
            &["--plan-fd", "5"][..],
            &["--plan-fd", "-5", "--", "ls"],
            &["--plan-fd", "5", "--plan-fd", "6", "--", "ls"],
            &["--plan", "ab", "--", "ls"],
            &["--plan-fd", "5", "--bind", "ws=/a/../b", "--", "ls"],
            &["--plan-fd", "5", "--strange", "1", "--", "ls"],
            &["--plan-fd", "5", "--", ""],
            &["--plan-fd", "5", "--plan", "x", "--plan-store", "/y", "--", "ls"],
        ] {
            assert!(run(words).is_err(), "{words:?}");
        }
    }
}
