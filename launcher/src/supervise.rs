//! P0, the supervisor: stays outside, owns the box, reports.
//!
//! Owns the loop over signals, P1's events, the box socket, the clock and the
//! caller; and how P0 ends. Whatever goes wrong here ends the box: a process
//! tree without a supervisor does not exist.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::alone;
use crate::control::{self, Event, Order, Used};
use crate::discard::Place;
use crate::init;
use crate::inside::Inside;
use crate::nest::{Entrance, Restored};
use crate::nested::{client, wire, Nests};
use crate::plan::{Guard, GuardLost};
use crate::report::{LimitHit, Outcome, Refusal};
use crate::sys;
use crate::terminal::Terminal;
use crate::trace::Tracer;

/// Sent to P0 by `Popen.kill()`: end the whole box now. SIGRTMAX-1; SIGKILL
/// itself would end the box too, but leave nobody to write the end record.
pub const KILL_BOX: i32 = 63;

/// What P0 holds while the box lives.
pub struct Supervisor {
    pub init: libc::pid_t,
    /// Without a pid namespace P1 is asked to end the box: nobody else can do it with one signal.
    pub alone: bool,
    pub control: OwnedFd,
    /// P1's and P2's refusal pipe; None once the command has started.
    pub errors: Option<OwnedFd>,
    pub signals: OwnedFd,
    pub terminal: Terminal,
    pub caller: Option<RawFd>,
    pub deadline: Option<Instant>,
    pub entrance: Option<Entrance>,
    pub guards: Vec<Guard>,
    pub guard_lost: GuardLost,
    pub inside: Inside,
    pub nests: Nests,
    /// Of a box inside another: to the one who asked for it.
    pub link: Option<RawFd>,
    /// Private places whose content is counted at the end, in the plan's order.
    pub places: Vec<Place>,
    pub command: libc::pid_t,
    /// It has got as far as exec: from here on it may have done anything.
    pub started: bool,
    pub tracer: Option<Tracer>,
    /// The home is a list of binds, not an overlay.
    pub snapshot: bool,
    pub status: Option<i32>,
    /// Nothing of the box is left but P1, which is about to go.
    pub quiet: bool,
    /// A terminal stop came to P0 from outside and was passed on.
    pub stop_asked: bool,
    /// Why the box was ended from here, if it was.
    pub ended: Option<Outcome>,
    pub limit: Option<LimitHit>,
    /// What of the places that run code later changed, where that fails the run.
    pub changed: String,
    pub lost: Vec<String>,
    pub degraded: Vec<String>,
}

/// What the loop tells its caller, who writes the records.
pub enum Step {
    /// The command exists and waits at its gate.
    Forked,
    /// The command runs; its pid is known.
    Started,
    Inside(Vec<u8>),
    /// Somebody inside asks for a box, and what it takes is here.
    Asked,
    Refused(Refusal),
    /// P1 alone is left of the box: nothing of it changes files any more.
    Quiet,
    /// Every process of the box is dead.
    Over,
}

impl Supervisor {
    /// Waits until there is something to tell.
    pub fn next(&mut self) -> Step {
        loop {
            if self.nests.ready() {
                return Step::Asked;
            }
            let ready = self.wait();
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                self.end(Outcome::TimedOut);
            }
            if ready.caller {
                self.end(Outcome::CallerGone);
            }
            if ready.errors {
                if let Some(step) = self.read_errors() {
                    return step;
                }
            }
            if ready.control {
                let known = self.command;
                if self.events() {
                    if known != self.command {
                        return Step::Forked;
                    }
                    if std::mem::take(&mut self.quiet) {
                        return Step::Quiet;
                    }
                    continue;
                }
            }
            if ready.link {
                self.take_word();
            }
            if let Some(step) = self.serve_inside(ready.inside) {
                return step;
            }
            if ready.signals && self.take_signals() {
                return Step::Over;
            }
        }
    }

    fn wait(&self) -> Ready {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let errors = self.errors.as_ref().map_or(-1, |fd| fd.as_raw_fd());
        let control = if self.control_open() { self.control.as_raw_fd() } else { -1 };
        let caller = if self.ended.is_some() { -1 } else { self.caller.unwrap_or(-1) };
        let link = if self.ended.is_some() { -1 } else { self.link.unwrap_or(-1) };
        let mut fds = vec![poll(self.signals.as_raw_fd()), poll(control), poll(errors), poll(caller), poll(link)];
        let heard = !self.nests.waits();
        fds.extend(self.inside.descriptors().filter(|_| heard).chain(self.nests.descriptors()).map(poll));
        let until = self.inside.until().filter(|_| heard);
        let next = [self.deadline, until].into_iter().flatten().min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        // Rounded up: waking a moment early would spin.
        let timeout = left.map_or(-1, |left| (left + Duration::from_micros(999)).as_millis().min(1 << 30) as i32);
        // SAFETY: the array lives through the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        let got = |index: usize| fds[index].revents != 0;
        Ready {
            signals: got(0),
            control: got(1),
            errors: got(2),
            caller: got(3),
            link: got(4),
            inside: fds[5..].iter().any(|fd| fd.revents != 0) || until.is_some_and(|at| Instant::now() >= at),
        }
    }

    /// After the command's end P1 closes its side; SIGCHLD tells the rest.
    fn control_open(&self) -> bool {
        self.status.is_none()
    }

    fn limit(&mut self, which: LimitHit) {
        self.limit.get_or_insert(which);
        self.end(Outcome::Limit);
    }

    /// Which limit ended the box or its command, if one did.
    pub fn limit_hit(&self, signal: Option<i32>) -> Option<LimitHit> {
        match (self.ended, signal) {
            (Some(Outcome::TimedOut), _) => Some(LimitHit::Wall),
            (None, Some(libc::SIGXCPU)) => Some(LimitHit::CpuTime),
            _ => self.limit,
        }
    }

    /// Ends every process of the box: P1 is the init of its pid namespace.
    pub fn end(&mut self, why: Outcome) {
        if self.ended.is_none() {
            self.ended = Some(why);
        }
        self.deadline = None;
        self.end_init();
    }

    /// Without a pid namespace P1 sees the end of the socket, ends what it started, then itself.
    pub fn end_init(&self) {
        // SAFETY: P1 is our child and not reaped yet; the socket is ours.
        unsafe {
            if self.alone {
                libc::syscall(libc::SYS_shutdown, self.control.as_raw_fd(), libc::SHUT_WR);
                libc::kill(self.init, libc::SIGCONT);
            } else {
                libc::kill(self.init, libc::SIGKILL);
            }
        }
    }

    /// A refusal, or the end of the pipe: exec has closed the last writer.
    fn read_errors(&mut self) -> Option<Step> {
        let said = read_there(self.errors.as_ref()?);
        self.errors = None;
        if !said.is_empty() && matches!(self.ended, Some(Outcome::TimedOut | Outcome::CallerGone)) {
            // The box was ended from here: its processes may speak of each other's end.
            return Some(Step::Refused(self.never_started()));
        }
        if !said.is_empty() {
            let unknown = || Refusal::new("fork_failed", "box").detail("got an unreadable refusal");
            let refusal = Refusal::from_bytes(&said).unwrap_or_else(unknown);
            let left_alone = refusal.is("fork_failed") && refusal.object == init::GONE && refusal.errno.is_none();
            return Some(Step::Refused(if left_alone { self.never_started() } else { refusal }));
        }
        // The fork was announced before the pipe could close, unless the box died on the way.
        while self.command == 0 && self.events() {}
        if self.command == 0 {
            return Some(Step::Refused(self.never_started()));
        }
        self.started = true;
        Some(Step::Started)
    }

    fn never_started(&self) -> Refusal {
        let code = match self.ended {
            Some(Outcome::CallerGone) => "caller_gone",
            Some(Outcome::TimedOut) => "start_timed_out",
            _ => "fork_failed",
        };
        let refusal = Refusal::new(code, "box").detail("the box ended before its command started");
        // Somebody killed it, or the kernel for want of memory: no answer of the host's.
        let killed =
            matches!(self.ended, None | Some(Outcome::Killed)) && sys::death_of(self.init).ok() == Some(libc::SIGKILL);
        if killed {
            refusal.transient(true)
        } else {
            refusal
        }
    }

    /// One event of P1; false when there is none.
    fn events(&mut self) -> bool {
        match control::receive_event(self.control.as_raw_fd()) {
            Ok(Some(received)) => {
                self.event(received);
                true
            }
            Ok(None) => {
                self.status.get_or_insert(libc::SIGKILL);
                false
            }
            Err(e) => {
                if e.kind() != std::io::ErrorKind::WouldBlock {
                    self.end(Outcome::Killed);
                }
                false
            }
        }
    }

    fn event(&mut self, received: control::Received) {
        match received.event {
            Event::Listening(used) => self.listening(used, received.fds),
            Event::Forked => self.command = received.pid,
            Event::ForkedAs(pid) => self.command = pid,
            Event::Stopped(signal) => self.stopped(signal),
            Event::Continued => {}
            Event::Ended(status, alone) => {
                self.status = Some(status);
                // What is inside a box inside is no child of P1.
                self.quiet = alone && self.nests.none_lives();
            }
            Event::GuardLost(index) => self.guard_lost(index),
            Event::MemoryLimit => self.limit(LimitHit::Memory),
            Event::CpuLimit => self.limit(LimitHit::CpuTime),
            Event::ProcessLimit => self.limit(LimitHit::Processes),
            Event::Snapshot => self.snapshot = true,
            Event::Lent => self.nests.lend(received.fds),
        }
    }

    fn listening(&mut self, used: Vec<Used>, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        fds.next().into_iter().for_each(|fd| self.inside.listen(fd));
        self.places = fds.zip(used).map(|(fd, before)| Place { fd, before }).collect();
    }

    /// At strict the box ends; else the guard is put back from outside. Both are recorded.
    fn guard_lost(&mut self, index: u32) {
        let Some(guard) = self.guards.get(index as usize).cloned() else { return self.end(Outcome::GuardLost) };
        if self.guard_lost == GuardLost::End {
            self.lost.push(guard.path.clone());
            return self.end(Outcome::GuardLost);
        }
        if !self.lost.contains(&guard.path) {
            self.lost.push(guard.path.clone());
        }
        // It is put back in the box's own view. Those inside have each their own, without it.
        self.nests.kill();
        if self.entrance.is_none() {
            self.entrance = self.nests.mount_space().and_then(|mount| Entrance::lent(mount).ok());
        }
        let order = match self.entrance.as_ref().map(|way| way.restore(&guard)) {
            Some(Restored::Placed) => Order::Restored(index),
            // Removed by the host: it is guarded again as soon as it is back.
            Some(Restored::Gone) => Order::Gone(index),
            _ => return self.end(Outcome::GuardLost),
        };
        if control::send_order(self.control.as_raw_fd(), &order).is_err() {
            self.end(Outcome::GuardLost);
        }
    }

    /// The command stopped: give it the terminal if that is what it wants, else
    /// stop as it did, and go on together. A stop that is none of the terminal's
    /// doing (`kill -STOP 0` inside) is the box's own affair: the supervisor,
    /// its clock and the caller's pipeline go on.
    fn stopped(&mut self, signal: i32) {
        if let Some(link) = self.link {
            // Whoever asked has the terminal, and stops with the command.
            return drop(wire::send(link, &client::stopped(signal), &[], false));
        }
        let asks = matches!(signal, libc::SIGTTIN | libc::SIGTTOU);
        if asks && !self.terminal.handed && self.terminal.hand_over(self.command) {
            return self.signal(libc::SIGCONT, true);
        }
        let from_terminal = asks || signal == libc::SIGTSTP;
        let asked = std::mem::take(&mut self.stop_asked);
        if !from_terminal || !(asked || self.terminal.is_job()) {
            return;
        }
        let theirs = self.terminal.take_back();
        stop_self(signal);
        if theirs.is_some() && self.terminal.hand_over(self.command) {
            self.terminal.restore(theirs);
        }
        self.signal(libc::SIGCONT, true);
    }

    /// A word of the one who asked; when that is gone, so is the box.
    fn take_word(&mut self) {
        let Some(link) = self.link else { return };
        let mut word = [0u8; client::WORD_BYTES];
        match wire::receive(link, &mut word) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok((_, fds)) if !fds.is_empty() => {
                wire::discard(fds);
                self.end(Outcome::CallerGone);
            }
            Ok((client::WORD_BYTES, _)) => match client::signal_of(word) {
                Some((KILL_BOX, _)) => self.end(Outcome::Killed),
                Some((number, group)) => self.signal(number, group),
                None => self.end(Outcome::CallerGone),
            },
            _ => self.end(Outcome::CallerGone),
        }
    }

    fn signal(&self, number: i32, group: bool) {
        // A P1 that cannot be told is gone, which the loop sees next.
        let _ = control::send_order(self.control.as_raw_fd(), &Order::Signal { number, group });
    }

    fn serve_inside(&mut self, ready: bool) -> Option<Step> {
        if !ready {
            return None;
        }
        let mut messages = self.nests.take();
        self.inside.charge(messages.iter().map(Vec::len).sum());
        if !self.nests.waits() {
            self.inside.serve(|message| messages.push(message.to_vec()));
        }
        if self.nests.ask(std::mem::take(&mut self.inside.asked)) {
            // A P1 that cannot be told is gone, which the loop sees next.
            let _ = control::send_order(self.control.as_raw_fd(), &Order::Lend);
        }
        (!messages.is_empty()).then(|| Step::Inside(messages.join(&b'\n')))
    }

    /// True when P1 is dead and reaped.
    fn take_signals(&mut self) -> bool {
        let mut child = false;
        while let Some(info) = sys::read_signal(self.signals.as_raw_fd()) {
            match info.ssi_signo as i32 {
                libc::SIGCHLD => child = true,
                KILL_BOX => self.end(Outcome::Killed),
                number => self.forward(number, info.ssi_code),
            }
        }
        child && self.reaped()
    }

    /// The terminal signals its foreground group itself; while that is the box's
    /// group, only signals that a process sent are passed on (sigaction(2), si_code <= 0).
    fn forward(&mut self, number: i32, code: i32) {
        let sent = code <= 0;
        self.stop_asked |= matches!(number, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        // SIGCONT has done its work on us; the box is continued where we stopped with it.
        if !sent && (self.terminal.handed || number == libc::SIGCONT) {
            return;
        }
        self.signal(number, !sent);
    }

    fn reaped(&mut self) -> bool {
        // What P1 still had to say is in the socket.
        while self.control_open() && self.events() {}
        let mut status = 0;
        // SAFETY: status lives through the call.
        let pid = unsafe { libc::waitpid(self.init, &mut status, libc::WNOHANG) };
        if pid == self.init && self.alone {
            alone::sweep();
        }
        pid == self.init
    }
}

/// What lies in a pipe. Not read into the stack, of which a caller may have left us 32 KB.
fn read_there(pipe: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0u8; 8192];
    // SAFETY: the buffer lives through the call.
    let size = unsafe { libc::read(pipe.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(size.max(0) as usize);
    buffer
}

struct Ready {
    signals: bool,
    control: bool,
    errors: bool,
    caller: bool,
    link: bool,
    inside: bool,
}

/// Stops this process by `signal` as the command was, so that a shell sees the
/// same; returns when it is continued.
pub fn stop_self(signal: i32) {
    // SAFETY: sets are plain data; the default action of a stop signal is to stop.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &only, std::ptr::null_mut());
    }
}
