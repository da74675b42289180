//! `--look PATH`: does the file system behind a path answer?
//!
//! Owns one child that asks and a parent that does not wait for ever: whoever asks a file system
//! that hangs may never come back, not even to be killed, so the caller must not ask itself. The
//! child is left behind where that is so, and goes when the file system does.
//! Next: src/stockade/process/reach.py.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use crate::sys;

/// A file system on the other side of the world answers in a third of a second.
const ROOM: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(1);

const ANSWERED: i32 = 0;
const SILENT: i32 = 1;

/// Exit status 0: it answered, whatever it said; 1: it did not; 125: nobody could ask.
pub fn main(path: &CStr) -> i32 {
    // SAFETY: the launcher has one thread.
    let child = match unsafe { sys::fork_into(0) } {
        Err(_) => return crate::receipts::REFUSED,
        Ok(0) => ask(path),
        Ok(child) => child,
    };
    let until = Instant::now() + ROOM;
    // SAFETY: our own child; no status is asked for.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) } == 0 {
        if Instant::now() >= until {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return SILENT;
        }
        std::thread::sleep(LOOK);
    }
    ANSWERED
}

/// As the child: without our streams, whose end somebody waits for.
fn ask(path: &CStr) -> ! {
    // SAFETY: the path outlives the calls; stat is plain data.
    unsafe {
        for stream in 0..3 {
            libc::close(stream);
        }
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstatat(libc::AT_FDCWD, path.as_ptr(), &mut stat, 0);
        libc::_exit(0)
    }
}
