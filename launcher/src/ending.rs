//! How P0 ends: as the command did.
//!
//! Owns the translation of the box's end into an exit code, a signal and an
//! outcome, and the raising of that signal on ourselves.

use crate::receipts::REFUSED;
use crate::report;
use crate::supervise::Supervisor;

const EXIT_TIMED_OUT: i32 = 124;
const CHANGED: &str = "persistence_changed";

/// The command's exit code or signal, as the receipt and our own end give it.
pub fn ends(box_: &Supervisor) -> (Option<i32>, Option<i32>) {
    // Without a status the box was killed from outside, P1 first.
    let status = box_.status.unwrap_or(libc::SIGKILL);
    if libc::WIFEXITED(status) {
        return (Some(libc::WEXITSTATUS(status)), None);
    }
    (None, Some(libc::WTERMSIG(status)))
}

pub fn outcome(box_: &Supervisor, signal: Option<i32>) -> report::Outcome {
    match (box_.ended, signal) {
        (Some(why), _) => why,
        (None, Some(libc::SIGXCPU)) => report::Outcome::Limit,
        (None, Some(_)) => report::Outcome::Signalled,
        (None, None) => report::Outcome::Exited,
    }
}

pub fn usage() -> (u64, u64) {
    // SAFETY: rusage is plain data that lives through the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ms = |t: libc::timeval| t.tv_sec as u64 * 1000 + t.tv_usec as u64 / 1000;
    (ms(usage.ru_utime) + ms(usage.ru_stime), usage.ru_maxrss as u64 * 1024)
}

/// The same as one number, for a supervisor that somebody else speaks for; a signal is negative.
pub fn told(box_: &Supervisor) -> i32 {
    match (box_.ended, ends(box_)) {
        (Some(report::Outcome::TimedOut), _) => EXIT_TIMED_OUT,
        (Some(report::Outcome::GuardLost | report::Outcome::Persistence), _) => finish(box_),
        (_, (Some(code), _)) => code,
        (_, (None, signal)) => -signal.unwrap_or(libc::SIGKILL),
    }
}

/// Ends as the command did: same code, or the same signal raised on ourselves.
pub fn finish(box_: &Supervisor) -> i32 {
    match box_.ended {
        Some(report::Outcome::TimedOut) => {
            tell("wall: the time limit was reached");
            return EXIT_TIMED_OUT;
        }
        Some(report::Outcome::Limit) => tell("limit: memory or processor time of the box was used up"),
        Some(report::Outcome::GuardLost) => {
            eprintln!("stockade: ended: guard_lost: {}", report::show(box_.lost.join(" ").as_bytes()));
            return REFUSED;
        }
        Some(report::Outcome::Persistence) => {
            eprintln!("stockade: ended: {CHANGED}: {}", box_.changed);
            return REFUSED;
        }
        _ => {}
    }
    match ends(box_) {
        (Some(code), _) => code,
        (None, signal) => raise(signal.unwrap_or(libc::SIGKILL)),
    }
}

/// No core of ours: it would hold the caller's environment.
pub fn raise(signal: i32) -> i32 {
    // SAFETY: sets are plain data; raising ends the process for every signal that ended the command.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
    }
    128 + signal
}

/// For a person at a terminal; a program has the receipt, and its captured stderr is the command's.
fn tell(what: &str) {
    // SAFETY: no pointers.
    if unsafe { libc::isatty(libc::STDERR_FILENO) } == 1 {
        eprintln!("stockade: ended: {what}");
    }
}
