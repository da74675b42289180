//! Watching which names the command uses (`--trace-fd`), on demand.
//!
//! Owns P0's side: a child of P0 on the host takes hold of the command before it
//! runs, follows everything that it starts, and writes one JSON line for each
//! different (call, name, result). A process and not a thread: P0 forks helpers,
//! and nothing but P0 and its caller ever waits for it. Fails closed: a command that
//! cannot be traced does not run (`trace_denied`), one that escapes its tracer gets
//! ENOSYS for every such call, and the tracer's death ends the box
//! (PTRACE_O_EXITKILL). What it writes is what the command said: a help for people,
//! no evidence. Source: ptrace(2); seccomp(2), SECCOMP_RET_TRACE.
//! Read next: `trace/follow.rs` (the loop), `trace/calls.rs` (which argument is a name).

mod calls;
mod follow;
mod lines;
mod memory;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::report::Refusal;
use crate::sys;

pub struct Tracer {
    pid: libc::pid_t,
}

/// A pipe or a terminal could hold up the box, a directory takes no lines.
pub fn check(file: RawFd) -> Result<(), Refusal> {
    let fail = |detail: &str| Refusal::new("usage", "--trace-fd").detail(detail);
    let st = sys::fstat(file).map_err(|e| fail("expected an open descriptor").io(&e))?;
    // SAFETY: F_GETFL and F_SETFD take no pointer.
    let flags = unsafe {
        libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(file, libc::F_GETFL)
    };
    let writes = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    match writes && st.st_mode & libc::S_IFMT == libc::S_IFREG {
        true => Ok(()),
        false => Err(fail("expected a regular file, open for writing")),
    }
}

/// Returns when the tracer holds `command`, which waits at its gate.
pub fn start(file: RawFd, command: libc::pid_t) -> Result<Tracer, Refusal> {
    let fail = |e: &std::io::Error| Refusal::new("fork_failed", "tracer").io(e);
    let (answer, answer_in) = sys::pipe().map_err(|e| fail(&e))?;
    let supervisor = std::process::id() as libc::pid_t;
    // SAFETY: P0 is single-threaded.
    let pid = unsafe { sys::fork_into(0) }.map_err(|e| fail(&e))?;
    if pid == 0 {
        let code = follow::run(file, command, supervisor, answer_in);
        // SAFETY: no destructor of P0's may run in its copy.
        unsafe { libc::_exit(code) }
    }
    drop(answer_in);
    match read_answer(&answer) {
        Some(0) => Ok(Tracer { pid }),
        Some(errno) => Err(Refusal::new("trace_denied", "command").errno(errno)),
        None => Err(Refusal::new("trace_denied", "command").detail("got no answer of the tracer")),
    }
}

/// The error number of taking hold, 0 for success.
fn read_answer(pipe: &OwnedFd) -> Option<i32> {
    let mut bytes = [0u8; 4];
    // SAFETY: the buffer lives through the call.
    let size = unsafe { libc::read(pipe.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    (size == bytes.len() as isize).then(|| i32::from_ne_bytes(bytes))
}

impl Tracer {
    /// Once every process of the box is dead: waits for the last line. Returns what is missing.
    pub fn finish(self) -> Option<String> {
        let mut status = 0;
        // SAFETY: our own child; status lives through the call.
        let reaped = unsafe { libc::waitpid(self.pid, &mut status, 0) } == self.pid;
        (!reaped || status != 0).then(|| "trace: not written to its end".to_string())
    }
}
