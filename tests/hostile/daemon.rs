//! Tries to outlive its box: double fork, own sessions, every signal ignored, re-parented.
//!
//! Usage: daemon COUNT MARKER [stay]. Starts COUNT daemons, each of which beats by appending to
//! MARKER; with `stay` the first process waits too. Prints the number started.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

extern "C" {
    fn fork() -> i32;
    fn setsid() -> i32;
    fn signal(number: i32, handler: usize) -> usize;
    fn _exit(code: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn close(fd: i32) -> i32;
}

const IGNORE: usize = 1;

fn ignore_everything() {
    for number in 1..65 {
        // SAFETY: signal(2) with SIG_IGN takes no memory; numbers it refuses are errors only.
        unsafe { signal(number, IGNORE) };
    }
}

fn beat(marker: &str) -> ! {
    for fd in 0..3 {
        // SAFETY: closing standard descriptors of this process; nothing uses them afterwards.
        unsafe { close(fd) };
    }
    loop {
        if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(marker) {
            let _ = writeln!(file, "{}", std::process::id());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(marker: &str) {
    // SAFETY: this program has one thread; the child only uses memory that it owns after fork.
    let middle = unsafe { fork() };
    if middle == 0 {
        // SAFETY: as above; setsid takes no memory.
        unsafe { setsid() };
        ignore_everything();
        // SAFETY: as above.
        if unsafe { fork() } == 0 {
            // SAFETY: as above.
            unsafe { setsid() };
            beat(marker);
        }
        // SAFETY: ends the middle process without running destructors of the parent.
        unsafe { _exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the kernel to write to.
    unsafe { waitpid(middle, &mut status, 0) };
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let count: usize = args[1].parse().expect("a number");
    for _ in 0..count {
        start(&args[2]);
    }
    // Give each daemon the time to prove that it runs: wait for the marker, bounded.
    for _ in 0..500 {
        if std::fs::metadata(&args[2]).map(|m| m.len() > 0).unwrap_or(false) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{count}");
    if args.get(3).map(String::as_str) == Some("stay") {
        ignore_everything();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}
