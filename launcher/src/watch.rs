//! P1 once the command runs: reap, report, watch.
//!
//! Owns the loop of process 1. It holds no capability, sits behind a filter of
//! its own and cannot be read or traced, because hostile code runs beside it.
//! The end of the control socket (P0 is gone) or of the command ends P1, and the
//! kernel then kills whatever is left in the pid namespace (pid_namespaces(7)).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::control::{self, Event, Order};
use crate::keeper::Keeper;
use crate::steps::guards::{Moves, Placed};
use crate::sys;

/// How often the tree's memory is added up, where a limit was asked for.
const SAMPLE_MS: i32 = 100;
/// How often a guarded name that the host removed is looked for.
const LOOK_MS: i32 = 5;
/// How often guards are looked at where nobody tells of a move.
const TIMER_MS: i32 = 20;
/// How many signals are taken before anything else is looked at; each is pending once at most.
const SIGNALS: usize = 64;

/// P0 keeps the wall clock. P1 stands in for a P0 that is stopped (Ctrl-Z), this much later.
const GRACE: Duration = Duration::from_secs(1);

/// Where the processes of the box are found.
#[derive(Clone, Copy)]
pub enum Tree {
    /// All that the pid namespace has, but process 1.
    Namespace,
    /// What this process has started, and what that has; not the keeper.
    Descendants { but: libc::pid_t },
}

pub struct Watch {
    pub command: libc::pid_t,
    pub control: RawFd,
    pub signals: OwnedFd,
    pub mounts: File,
    pub guards: Vec<Placed>,
    pub moves: Moves,
    /// Guards that P0 was told about and has not put back yet.
    pub lost: Vec<usize>,
    /// Lost guards whose name nothing has; looked for until it is back.
    pub absent: Vec<usize>,
    pub memory_bytes: Option<u64>,
    pub cpu_time_s: Option<u64>,
    /// Only where no limit of the kernel counts the box alone.
    pub processes: Option<u64>,
    pub tree: Tree,
    /// Only without a pid namespace.
    pub keeper: Option<Keeper>,
    /// A lost guard ends the box (strict); else the box stands still until it is back.
    pub end_on_loss: bool,
    pub deadline: Option<Instant>,
}

impl Watch {
    pub fn deadline(wall_ms: Option<u64>) -> Option<Instant> {
        wall_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms) + GRACE))
    }

    /// Until the command has ended; the exit code of P1.
    pub fn run(mut self) -> i32 {
        sys::shed_code();
        // What was moved since the guards were placed, before anything could tell.
        self.check_guards();
        loop {
            if self.end_on_loss && !self.lost.is_empty() {
                return 125;
            }
            let ready = self.wait();
            if ready[1] != 0 && !self.orders() {
                return 125;
            }
            let moved = ready[0] != 0 && self.take_signals();
            if ready[0] != 0 && self.reap() {
                return 0;
            }
            if ready[2] != 0 || moved || self.by_timer() {
                self.check_guards();
            }
            self.look_for_absent();
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                return 124;
            }
            if let Some(limit) = self.over_limit() {
                self.end_all();
                self.tell(&limit);
                return 0;
            }
        }
    }

    /// True when a directory told of a change. Takes a few at most: renames without an end would
    /// bring one more each time, and poll(2) tells of those that are left.
    fn take_signals(&self) -> bool {
        let taken = (0..SIGNALS).map_while(|_| sys::read_signal(self.signals.as_raw_fd()));
        taken.fold(false, |moved, signal| moved | (signal.ssi_signo == libc::SIGIO as u32))
    }

    /// proc_pid_mountinfo(5): a change of the mount table is POLLERR | POLLPRI.
    fn wait(&self) -> [i16; 3] {
        let watched = if self.guards.is_empty() { -1 } else { self.mounts.as_raw_fd() };
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = [
            poll(self.signals.as_raw_fd(), libc::POLLIN),
            poll(self.control, libc::POLLIN),
            poll(watched, libc::POLLPRI),
        ];
        let left =
            self.deadline.map(|at| at.saturating_duration_since(Instant::now()).as_millis().min(1 << 30) as i32 + 1);
        let limits = [self.memory_bytes, self.cpu_time_s, self.processes];
        let sample = limits.into_iter().flatten().next().map(|_| SAMPLE_MS);
        let look = (!self.absent.is_empty()).then_some(LOOK_MS);
        let timer = self.by_timer().then_some(TIMER_MS);
        let timeout = [left, sample, look, timer].into_iter().flatten().min().unwrap_or(-1);
        // SAFETY: the array lives through the call.
        unsafe { libc::poll(fds.as_mut_ptr(), 3, timeout) };
        fds.map(|fd| fd.revents)
    }

    fn by_timer(&self) -> bool {
        !self.guards.is_empty() && self.moves.untold()
    }

    fn tell(&self, event: &Event) {
        // A P0 that cannot be told is gone, and its end ends us at the next poll.
        let _ = control::send_event(self.control, event);
    }

    fn tell_if_room(&self, event: &Event) {
        let _ = control::send_if_room(self.control, event);
    }

    /// Before a word that P0, stopped perhaps, may be slow to take. kill(2): -1 is all
    /// of the namespace but process 1.
    fn end_all(&self) {
        // SAFETY: no pointers.
        unsafe { libc::kill(-1, libc::SIGKILL) };
    }

    /// False when P0 is gone.
    fn orders(&mut self) -> bool {
        loop {
            match control::receive_order(self.control, false) {
                Ok(Some(Order::Signal { number, group })) => {
                    let to = if group { -self.command } else { self.command };
                    // SAFETY: no pointers; the command is our unreaped child, or gone (ESRCH).
                    unsafe { libc::kill(to, number) };
                }
                Ok(Some(Order::Restored(index))) => self.restored(index),
                Ok(Some(Order::Lend)) => {
                    if control::send_spaces(self.control).is_err() {
                        self.tell(&Event::Lent);
                    }
                }
                Ok(Some(Order::Gone(index))) => {
                    self.absent.extend(self.position(index));
                    self.go_on();
                }
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(e) => return e.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// P0 names guards by their place in its list, in which some may not exist.
    fn position(&self, index: u32) -> Option<usize> {
        self.guards.iter().position(|placed| placed.index == index)
    }

    fn restored(&mut self, index: u32) {
        let Some(at) = self.position(index) else { return };
        self.lost.retain(|lost| *lost != at);
        // First: what moves it from now on is told.
        self.moves.watch(&self.guards[at].guard.path);
        if self.guards[at].renew().is_err() {
            return self.lose(at);
        }
        self.go_on();
    }

    /// Nothing of the box runs while a guard is away: every process is stopped
    /// before anybody else is told. kill(2): -1 is all of the namespace but process 1.
    fn stand_still(&self) {
        // SAFETY: no pointers.
        unsafe { libc::kill(-1, libc::SIGSTOP) };
    }

    fn go_on(&self) {
        if self.lost.len() == self.absent.len() {
            // SAFETY: no pointers.
            unsafe { libc::kill(-1, libc::SIGCONT) };
        }
    }

    fn lose(&mut self, at: usize) {
        self.stand_still();
        self.lost.push(at);
        self.tell(&Event::GuardLost(self.guards[at].index));
    }

    fn look_for_absent(&mut self) {
        let looked = std::mem::take(&mut self.absent);
        let (back, absent): (Vec<usize>, Vec<usize>) = looked.into_iter().partition(|at| self.guards[*at].exists());
        self.absent = absent;
        back.into_iter().for_each(|at| self.tell(&Event::GuardLost(self.guards[at].index)));
    }

    fn check_guards(&mut self) {
        for at in 0..self.guards.len() {
            if !self.lost.contains(&at) && !self.guards[at].holds() {
                self.lose(at);
            }
        }
    }

    /// Takes every change of state there is; true when the command has ended.
    fn reap(&self) -> bool {
        loop {
            let mut status = 0;
            let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
            // SAFETY: status lives through the call.
            let pid = unsafe { libc::waitpid(-1, &mut status, flags) };
            if pid <= 0 {
                return false;
            }
            let ended = libc::WIFEXITED(status) || libc::WIFSIGNALED(status);
            if ended && self.keeper.as_ref().is_some_and(|keeper| keeper.pid == pid) {
                // Killed by somebody else: the end of ours is the end of the box.
                self.end_all();
                return true;
            }
            if pid != self.command {
                continue;
            }
            if libc::WIFSTOPPED(status) {
                self.tell_if_room(&Event::Stopped(libc::WSTOPSIG(status)));
            } else if libc::WIFCONTINUED(status) {
                self.tell_if_room(&Event::Continued);
            } else {
                self.end_all();
                self.keeper.iter().for_each(Keeper::reap);
                self.tell(&Event::Ended(status, childless()));
                return true;
            }
        }
    }

    /// The limits of the whole tree that no single call of the kernel holds.
    fn over_limit(&self) -> Option<Event> {
        if self.memory_bytes.is_some_and(|limit| resident_bytes(self.tree) > limit) {
            return Some(Event::MemoryLimit);
        }
        if self.processes.is_some_and(|limit| processes(self.tree).len() as u64 > limit) {
            return Some(Event::ProcessLimit);
        }
        // One second more than RLIMIT_CPU, which tells a single process first.
        let used_up = |limit| cpu_time(self.tree) >= Duration::from_secs(limit + 1);
        self.cpu_time_s.is_some_and(used_up).then_some(Event::CpuLimit)
    }
}

/// Every orphan of the namespace is process 1's child: without any, nothing else lives in it.
fn childless() -> bool {
    // SAFETY: no status is asked for.
    let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    pid < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
}

fn processes(tree: Tree) -> Vec<u32> {
    match tree {
        Tree::Namespace => numbers().filter(|pid| *pid != 1).collect(),
        Tree::Descendants { but } => descendants().into_iter().filter(|pid| *pid != but as u32).collect(),
    }
}

fn numbers() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok())
}

/// Every process below this one. Source: proc_pid_stat(5), field 4.
pub fn descendants() -> Vec<u32> {
    let parents: Vec<(u32, u32)> = numbers().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![std::process::id()];
    let mut next = 0;
    while let Some(above) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Processor time of the living, what they have reaped, and what P1 has reaped.
/// Source: proc_pid_stat(5), fields 14 to 17; getrusage(2), RUSAGE_CHILDREN.
fn cpu_time(tree: Tree) -> Duration {
    // SAFETY: sysconf has no memory effect; rusage is plain data that lives through the call.
    let (per_second, reaped) = unsafe {
        let mut reaped: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut reaped);
        (libc::sysconf(libc::_SC_CLK_TCK).max(1) as u64, reaped)
    };
    let ticks: u64 = processes(tree).into_iter().map(cpu_ticks).sum();
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    Duration::from_millis(ticks * 1000 / per_second) + of(reaped.ru_utime) + of(reaped.ru_stime)
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum()
}

/// Resident memory of every process of the namespace but P1. Source: proc_pid_statm(5).
fn resident_bytes(tree: Tree) -> u64 {
    // SAFETY: sysconf has no memory effect.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(0) as u64;
    processes(tree).into_iter().map(|pid| resident_pages(pid) * page).sum()
}

fn resident_pages(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}
