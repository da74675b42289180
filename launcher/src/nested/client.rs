//! The launcher inside a box: it asks the box's supervisor and stands in for it.
//!
//! Owns the request, and what only the asking process can do: it passes signals on, hands its
//! terminal over, stops when the command stops, and ends as it ends. It decides nothing, and what it
//! says is believed by nobody: what it could do wrong it could do without. Next: nested.rs.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::args::Args;
use crate::init::Start;
use crate::nested::request::{self, Request, MAGIC, MAX_BYTES, MAX_KEPT};
use crate::nested::wire;
use crate::receipts::{Out, REFUSED};
use crate::report::{Refusal, Report};
use crate::session::{adopt, Block, Given};
use crate::supervise::stop_self;
use crate::terminal::Terminal;
use crate::{ending, plan, sys, ulid};

const SOCKET: &str = "/run/stockade/box.sock";
/// One letter, one flag, one number.
pub const WORD_BYTES: usize = 6;

fn word(letter: u8, flag: bool, number: i32) -> [u8; WORD_BYTES] {
    let n = number.to_le_bytes();
    [letter, u8::from(flag), n[0], n[1], n[2], n[3]]
}

fn number(word: [u8; WORD_BYTES]) -> i32 {
    i32::from_le_bytes([word[2], word[3], word[4], word[5]])
}

pub fn stopped(signal: i32) -> [u8; WORD_BYTES] {
    word(b's', false, signal)
}

/// The command's number, in the pid namespace of the one who asked.
pub fn started(pid: i32) -> [u8; WORD_BYTES] {
    word(b'f', false, pid)
}

/// The signal that is asked for, and whether for the command's whole group.
pub fn signal_of(word: [u8; WORD_BYTES]) -> Option<(i32, bool)> {
    (word[0] == b'k' && (1..=64).contains(&number(word))).then(|| (number(word), word[1] != 0))
}

/// The program, inside a box. Returns the exit status, or raises the command's signal.
pub fn main(args: &Args, block: &Block, start: &Start) -> i32 {
    let mut out = Out::nowhere();
    out.report = Report::new(args.report_fd.map(adopt));
    out.run_id = ulid::ulid().unwrap_or_default();
    let done = ask(args, block, start).and_then(Client::until_the_end);
    match done {
        Ok(code) if code < 0 => ending::raise(-code),
        Ok(code) => code,
        Err(Some(refusal)) => out.refuse(&refusal),
        Err(None) => REFUSED,
    }
}

type Failed = Option<Refusal>;

fn ask(args: &Args, block: &Block, start: &Start) -> Result<Client, Failed> {
    let fail = |what: &str| {
        let what = what.to_string();
        move |e: std::io::Error| Some(Refusal::new("nest_gone", what).io(&e))
    };
    let signals = sys::signal_fd().map_err(fail("signalfd"))?;
    let plan_fd = args
        .plan_fd
        .ok_or_else(|| Some(Refusal::new("usage", "--nest").detail("got no plan, expected --plan-fd N")))?;
    // SAFETY: the number is the caller's, and stays ours until the end.
    let copy = unsafe { BorrowedFd::borrow_raw(plan_fd) }.try_clone_to_owned().map_err(fail("plan"))?;
    let kept = plan::descriptors_of(&copy.into()).map_err(Some)?;
    if kept.len() > MAX_KEPT {
        let detail = format!("got {} descriptors to keep, expected at most {MAX_KEPT} inside a box", kept.len());
        return Err(Some(Refusal::new("fds_denied", "request").detail(detail)));
    }
    let given = Given::own(args, block, start).map_err(Some)?;
    let items = |pairs: Vec<(Vec<u8>, Vec<u8>)>| pairs.into_iter().map(|(n, v)| [n, v].join(&b'=')).collect();
    let request = Request {
        argv: args.argv.iter().map(|item| item.to_bytes().to_vec()).collect(),
        environ: items(given.environ),
        set: items(given.set),
        binds: args.binds.clone(),
        cwd: args.cwd.clone(),
        timeout_ms: args.timeout_ms,
        kept: kept.clone(),
        report: args.report_fd.is_some(),
        quiet: args.quiet,
        umask: start.umask,
        // Our own start has changed that of SIGCHLD.
        ignored: Start::ignored_here() | u64::from(start.sigchld_ignored) << (libc::SIGCHLD - 1),
    };
    let bytes = request.bytes();
    if request::parse(&bytes).is_none() {
        // The one that listens would take it for another version's.
        let detail = format!("got {} bytes, expected at most {MAX_BYTES} and 65,536 words of 128 KiB", bytes.len());
        return Err(Some(Refusal::new("exec_failed", "argument list or environment").detail(detail)));
    }
    let sealed = sys::sealed_memfd(&bytes).map_err(fail("request"))?;
    let null = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR, 0).map_err(fail("/dev/null"))?;
    let open = |fd: RawFd| if sys::fstat(fd).is_ok() { fd } else { null.as_raw_fd() };
    let streams = [open(0), open(1), open(2)];
    let fds: Vec<RawFd> =
        [plan_fd, sealed.as_raw_fd()].into_iter().chain(streams).chain(args.report_fd).chain(kept).collect();
    let link = connect().map_err(fail(SOCKET))?;
    wire::send(link.as_raw_fd(), MAGIC, &fds, true).map_err(fail(SOCKET))?;
    let client = Client { link, signals, caller: args.caller_pidfd, terminal: Terminal::open(), command: 0 };
    Ok(client)
}

fn connect() -> std::io::Result<OwnedFd> {
    // SAFETY: the address is plain data that lives through the call; the descriptor is owned at once.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let socket = OwnedFd::from_raw_fd(sys::check(i64::from(libc::socket(libc::AF_UNIX, kind, 0)))? as RawFd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(SOCKET.bytes()) {
            *to = from as libc::c_char;
        }
        let size = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
        sys::check(libc::syscall(libc::SYS_connect, socket.as_raw_fd(), std::ptr::addr_of!(address), size))?;
        Ok(socket)
    }
}

struct Client {
    link: OwnedFd,
    signals: OwnedFd,
    caller: Option<RawFd>,
    terminal: Terminal,
    /// 0 until it runs.
    command: libc::pid_t,
}

impl Client {
    fn until_the_end(mut self) -> Result<i32, Failed> {
        let done = loop {
            let [link, signals, caller] = self.wait();
            if caller {
                // Nobody waits for us any more: with us goes the box.
                break Ok(REFUSED);
            }
            if signals {
                self.pass_on();
            }
            if link {
                if let Some(done) = self.take_word() {
                    break done;
                }
            }
        };
        self.terminal.take_back();
        done
    }

    fn wait(&self) -> [bool; 3] {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let fds = [self.link.as_raw_fd(), self.signals.as_raw_fd(), self.caller.unwrap_or(-1)];
        let mut fds = fds.map(poll);
        // SAFETY: the array lives through the call.
        unsafe { libc::poll(fds.as_mut_ptr(), 3, -1) };
        fds.map(|fd| fd.revents != 0)
    }

    /// Some: it is over.
    fn take_word(&mut self) -> Option<Result<i32, Failed>> {
        let mut buffer = [0u8; 8192];
        let size = match wire::receive(self.link.as_raw_fd(), &mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return None,
            Ok((size, _)) if size > 0 => size.min(buffer.len()),
            // With a record of the launch somebody else says how it ended, or nobody can.
            _ if self.command != 0 => return Some(Err(None)),
            _ => return Some(Err(Some(Refusal::new("nest_gone", SOCKET).detail("got its end, expected an answer")))),
        };
        match &buffer[..size] {
            [b'e', code @ ..] => Some(Ok(code.try_into().map_or(REFUSED, i32::from_le_bytes))),
            [b'r', said @ ..] => {
                let unknown =
                    || Refusal::new("nest_gone", SOCKET).detail("got other bytes, expected a refusal of this version");
                Some(Err(Some(Refusal::from_bytes(said).unwrap_or_else(unknown))))
            }
            said => {
                let said: [u8; WORD_BYTES] = said.try_into().unwrap_or_default();
                match said[0] {
                    b'f' => self.started(number(said)),
                    b's' => self.stopped(number(said)),
                    _ => {}
                }
                None
            }
        }
    }

    fn started(&mut self, pid: libc::pid_t) {
        self.command = pid.max(1);
        if pid > 1 && self.terminal.hand_over_at_start().is_some() {
            self.terminal.handed = false;
            self.terminal.hand_over(pid);
        }
    }

    fn stopped(&mut self, signal: i32) {
        let asks = matches!(signal, libc::SIGTTIN | libc::SIGTTOU);
        // It may have asked before the terminal was its own, and be told of only now.
        let has = self.terminal.is_with(self.command);
        if asks && (has || (!self.terminal.handed && self.terminal.hand_over(self.command))) {
            return self.say(libc::SIGCONT, true);
        }
        if !(asks || signal == libc::SIGTSTP) || !self.terminal.is_job() {
            return;
        }
        let theirs = self.terminal.take_back();
        stop_self(signal);
        if theirs.is_some() && self.terminal.hand_over(self.command) {
            self.terminal.restore(theirs);
        }
        self.say(libc::SIGCONT, true);
    }

    fn pass_on(&mut self) {
        while let Some(info) = sys::read_signal(self.signals.as_raw_fd()) {
            let (signal, sent) = (info.ssi_signo as i32, info.ssi_code <= 0);
            let ours = signal == libc::SIGCHLD || (!sent && (self.terminal.handed || signal == libc::SIGCONT));
            if !ours {
                self.say(signal, !sent);
            }
        }
    }

    fn say(&self, signal: i32, group: bool) {
        // A supervisor that is gone is seen as the end of the link.
        let _ = wire::send(self.link.as_raw_fd(), &word(b'k', group, signal), &[], true);
    }
}
