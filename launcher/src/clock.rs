//! The clock of a start, where a wall limit was asked for.
//!
//! Owns one thread of P0 that waits until the command is about to be started, or the time is up.
//! P0 looks at trees and at the state home before that, and a call to a file system that hangs
//! does not come back: no poll of its own can end such a start. When the time is up this thread
//! ends the box, says `start_timed_out` and ends P0, wherever its main thread stands. It uses no
//! heap until then and lets every fork end first, so P0 may fork beside it.
//! Fails closed: without its thread the start is refused. Next: drive.rs (the limit of the command).

use std::ffi::{CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::receipts::{Out, REFUSED};
use crate::report::{Refusal, Report};
use crate::spool::Spool;
use crate::sys;

/// How long a command with a wall limit may take to start: the limit is the command's, and a start
/// that takes long on a busy machine is not charged to it.
const START_ROOM: Duration = Duration::from_secs(10);
/// How long the end of a box is waited for that was told to end.
const DEATH_ROOM: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);
/// Descriptors that do not belong to a row.
const SPARE: usize = 64;

/// No thread: nothing waits.
const OFF: u32 = 0;
/// The thread is being made, which takes heap.
const MADE: u32 = 1;
const ARMED: u32 = 2;
/// P0 makes a process; the time is not up before it has.
const FORKING: u32 = 3;
/// The time is up. For good.
const UP: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(OFF);
static INIT: AtomicI32 = AtomicI32::new(0);
static NOTED: Mutex<Option<Noted>> = Mutex::new(None);
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Where it is said that the time is up.
pub struct Told {
    pub run_id: String,
    pub report: Option<RawFd>,
    pub spool: Option<String>,
}

struct Noted {
    to: Told,
    /// The file that would be taken for that of a box that was killed, in its directory.
    journal: Option<(RawFd, CString)>,
}

/// When a start that began then has taken too long.
pub fn limit(began: Instant, wall: Duration) -> Instant {
    // A limit of centuries is none.
    began.checked_add(wall + START_ROOM).unwrap_or_else(|| began + Duration::from_secs(1 << 32))
}

/// Sets the clock. `rows` are those of the plan: P0 opens a few descriptors for each.
pub fn arm(until: Instant, rows: usize, to: Told) -> Result<(), Refusal> {
    sys::reserve_files(libc::STDERR_FILENO, 2 * rows + SPARE);
    *held(&NOTED) = Some(Noted { to, journal: None });
    STATE.store(MADE, Ordering::Release);
    // Signals are blocked by now, in it as well: they are P0's.
    match std::thread::Builder::new().stack_size(64 << 10).spawn(move || wait(until)) {
        Ok(thread) => {
            *held(&THREAD) = Some(thread);
            Ok(())
        }
        Err(e) => {
            STATE.store(OFF, Ordering::Release);
            Err(Refusal::new("fork_failed", "clock").io(&e))
        }
    }
}

/// The process whose end is the end of the box.
pub fn watch(init: libc::pid_t) {
    INIT.store(init, Ordering::Release);
}

/// The journal of the box, whose command has not run.
pub fn journal(dir: RawFd, name: &CStr) {
    if let Some(noted) = held(&NOTED).as_mut() {
        noted.journal = Some((dir, name.to_owned()));
    }
}

/// From here on nothing is ended by the clock. Does not come back where the time is up.
pub fn stop() {
    ready();
    if leave(ARMED, OFF) {
        sys::futex_wake(&STATE);
    }
}

/// After `stop`: the thread is gone, and with it the locks that it may hold.
pub fn gone() {
    if let Some(thread) = held(&THREAD).take() {
        let _ = thread.join();
    }
}

/// Around a fork: the copy of a lock that the thread holds would never be let go of.
pub fn before_fork() {
    ready();
    leave(ARMED, FORKING);
}

/// `child`: in the copy, which has no such thread.
pub fn after_fork(child: bool) {
    if STATE.load(Ordering::Acquire) == FORKING {
        STATE.store(if child { OFF } else { ARMED }, Ordering::Release);
        sys::futex_wake(&STATE);
    }
}

fn ready() {
    while STATE.load(Ordering::Acquire) == MADE {
        sys::futex_wait(&STATE, MADE);
    }
}

/// False where the clock is in another state. Where the time is up this thread has nothing to do any more.
fn leave(from: u32, to: u32) -> bool {
    match STATE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
        Err(UP) => loop {
            sys::futex_wait(&STATE, UP);
        },
        other => other.is_ok(),
    }
}

fn held<T>(lock: &'static Mutex<T>) -> MutexGuard<'static, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(until: Instant) {
    STATE.store(ARMED, Ordering::Release);
    sys::futex_wake(&STATE);
    loop {
        let state = STATE.load(Ordering::Acquire);
        let left = until.saturating_duration_since(Instant::now());
        match state {
            OFF => return,
            FORKING => sys::futex_wait(&STATE, FORKING),
            _ if left.is_zero() => {
                if STATE.compare_exchange(ARMED, UP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    over();
                }
            }
            _ => sys::futex_wait_for(&STATE, state, left),
        }
    }
}

/// The box first, then the word, then what might hang as the start did.
fn over() -> ! {
    let init = INIT.load(Ordering::Acquire);
    if init > 0 {
        // SAFETY: P1 is a child of this process that nobody else reaps any more.
        unsafe { libc::kill(init, libc::SIGKILL) };
    }
    if let Some(noted) = held(&NOTED).take() {
        say(noted);
    }
    reap(init);
    // SAFETY: ends every thread.
    unsafe { libc::_exit(REFUSED) }
}

fn say(noted: Noted) {
    // SAFETY: the descriptor is open as long as the process lives, which ends here.
    let report = noted.to.report.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let mut out = Out { run_id: noted.to.run_id, report: Report::new(report), ..Out::nowhere() };
    out.spool = noted.to.spool.and_then(|path| Spool::open(Path::new(&path)).ok());
    out.refuse(&Refusal::new("start_timed_out", "box").detail("the command was not started in time"));
    if let Some((dir, name)) = noted.journal {
        let _ = sys::unlink(dir, &name);
    }
}

/// A zombie of ours would be for the caller's own init to reap.
fn reap(init: libc::pid_t) {
    let until = Instant::now() + DEATH_ROOM;
    // SAFETY: no status is asked for.
    let gone = || init <= 0 || unsafe { libc::waitpid(init, std::ptr::null_mut(), libc::WNOHANG) } != 0;
    while !gone() && Instant::now() < until {
        sys::futex_wait_for(&STATE, UP, LOOK);
    }
}
