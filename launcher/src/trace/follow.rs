//! The tracer: holds every process of the box, notes names, changes nothing.
//!
//! Owns the loop over stops. Each stop is answered so that the traced process
//! behaves as without us: signals are delivered, stops of job control stay stops
//! (PTRACE_LISTEN), ends reach the parent. A request that fails means that the
//! process was killed meanwhile; its end is the next thing the kernel tells.
//! Source: ptrace(2), "Stopped states", "PTRACE_EVENT stops", "execve(2) under ptrace".

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys;
use crate::trace::calls::{Calls, Named};
use crate::trace::lines::Lines;

/// linux/ptrace.h
const GET_SYSCALL_INFO: i32 = 0x420e;
const SYSCALL_INFO_EXIT: u8 = 2;
const SYSCALL_INFO_SECCOMP: u8 = 3;
/// Marks a stop at a call (PTRACE_O_TRACESYSGOOD).
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
/// The kernel's own words for "run this call again"; the program never sees them.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

const OPTIONS: i32 = libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESECCOMP;

/// `struct ptrace_syscall_info`: one call, on its way in or out.
#[repr(C)]
#[derive(Default)]
struct CallInfo {
    op: u8,
    padding: [u8; 3],
    arch: u32,
    instruction: u64,
    stack: u64,
    /// The number on the way in, the result on the way out.
    number: u64,
    args: [u64; 6],
    data: u64,
}

/// Runs as the tracer; the exit code.
pub fn run(file: RawFd, command: libc::pid_t, supervisor: libc::pid_t, answer: OwnedFd) -> i32 {
    let lives = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).is_ok();
    // SAFETY: no pointers, no failure.
    if !lives || unsafe { libc::getppid() } != supervisor {
        return 1;
    }
    let _ = sys::prctl(libc::PR_SET_NAME, c"stockade-trace".as_ptr() as u64);
    close_others(&[file, answer.as_raw_fd()]);
    let held = request(libc::PTRACE_SEIZE as i32, command, 0, OPTIONS as usize);
    let errno = held.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EPERM));
    // SAFETY: the array lives through the call.
    unsafe { libc::write(answer.as_raw_fd(), errno.to_ne_bytes().as_ptr().cast(), 4) };
    drop(answer);
    if held.is_err() {
        return 1;
    }
    let mut follow =
        Follow { calls: Calls::new(), open: BTreeMap::new(), lines: Lines::new(crate::session::adopt(file)) };
    follow.run();
    i32::from(!follow.lines.finish())
}

/// Copies of P0's ends would keep its pipes and sockets open. close_range(2), as step 8 does.
fn close_others(kept: &[RawFd; 2]) {
    let (low, high) = (kept[0].min(kept[1]) as u32, kept[0].max(kept[1]) as u32);
    for (first, last) in [(0, low.wrapping_sub(1)), (low + 1, high.wrapping_sub(1)), (high + 1, u32::MAX)] {
        if first <= last && !(first == 0 && last == u32::MAX) {
            // SAFETY: nothing in this process uses them.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

fn request(what: i32, pid: libc::pid_t, address: usize, data: usize) -> std::io::Result<i64> {
    // SAFETY: the requests used here take integers, or memory that outlives the call.
    sys::check(unsafe { libc::syscall(libc::SYS_ptrace, what as usize, pid as usize, address, data) })
}

/// A call that has begun, and the names in it.
type Open = (&'static str, Vec<Named>);

struct Follow {
    calls: Calls,
    open: BTreeMap<libc::pid_t, Open>,
    lines: Lines,
}

impl Follow {
    /// Until nothing is left to trace. Everybody who waits is answered before anybody is
    /// looked at again: the kernel tells of the youngest first, and two busy ones would
    /// keep the others waiting for ever.
    fn run(&mut self) {
        while let Some(first) = next_change(0) {
            let others = std::iter::from_fn(|| next_change(libc::WNOHANG));
            let changes: Vec<(libc::pid_t, i32)> = std::iter::once(first).chain(others).collect();
            changes.into_iter().for_each(|(pid, status)| self.changed(pid, status));
        }
    }

    fn changed(&mut self, pid: libc::pid_t, status: i32) {
        match libc::WIFSTOPPED(status) {
            true => self.stopped(pid, libc::WSTOPSIG(status), status >> 16),
            // Ended inside a call: it has no result.
            false => drop(self.open.remove(&pid)),
        }
    }

    fn stopped(&mut self, pid: libc::pid_t, signal: i32, event: i32) {
        let (how, deliver) = match event {
            libc::PTRACE_EVENT_SECCOMP => (self.enter(pid), 0),
            libc::PTRACE_EVENT_EXEC => (self.executed(pid), 0),
            // A stop of the whole group stays one until SIGCONT; SIGTRAP is a new child, or the end of the stop.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => (libc::PTRACE_LISTEN as i32, 0),
            0 if signal == SYSCALL_STOP => (self.leave(pid), 0),
            0 => (libc::PTRACE_CONT as i32, signal),
            _ => (libc::PTRACE_CONT as i32, 0),
        };
        let _ = request(how, pid, 0, deliver as usize);
    }

    /// Before a call that names something: to its end it goes only when the name could be read.
    fn enter(&mut self, pid: libc::pid_t) -> i32 {
        let found = call_info(pid).filter(|info| info.op == SYSCALL_INFO_SECCOMP);
        let named = found.and_then(|info| self.calls.names(pid, info.number, &info.args));
        match named {
            Some(open) => {
                self.open.insert(pid, open);
                libc::PTRACE_SYSCALL as i32
            }
            None => libc::PTRACE_CONT as i32,
        }
    }

    fn leave(&mut self, pid: libc::pid_t) -> i32 {
        if let Some(open) = self.open.remove(&pid) {
            if let Some(info) = call_info(pid).filter(|info| info.op == SYSCALL_INFO_EXIT) {
                self.note(&open, info.number as i64);
            }
        }
        libc::PTRACE_CONT as i32
    }

    /// A thread that executes a program takes over the pid of its process.
    fn executed(&mut self, pid: libc::pid_t) -> i32 {
        let mut thread: libc::c_ulong = 0;
        let to = std::ptr::addr_of_mut!(thread) as usize;
        let _ = request(libc::PTRACE_GETEVENTMSG as i32, pid, 0, to);
        let open = self.open.remove(&(thread as libc::pid_t));
        self.open.remove(&pid);
        if let Some(open) = open {
            self.note(&open, 0);
        }
        libc::PTRACE_CONT as i32
    }

    fn note(&mut self, (call, names): &Open, result: i64) {
        if !RESTARTS.contains(&result) {
            names.iter().for_each(|named| self.lines.add(call, named, result));
        }
    }
}

/// A process and its new state; None when there is none left, or, with WNOHANG, none now.
fn next_change(flags: i32) -> Option<(libc::pid_t, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: status lives through the call. The tracer has no children of its own.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | flags) };
        if pid > 0 {
            return Some((pid, status));
        }
        if pid == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

fn call_info(pid: libc::pid_t) -> Option<CallInfo> {
    let mut info = CallInfo::default();
    let to = std::ptr::addr_of_mut!(info) as usize;
    request(GET_SYSCALL_INFO, pid, std::mem::size_of::<CallInfo>(), to).ok().map(|_| info)
}
