//! The nest service: a narrower box for a process inside this one.
//!
//! Owns the way in. P0 takes the request's descriptors from the box socket and forks a supervisor of
//! its own for it, which closes everything else, joins the box's user, mount and net namespace and
//! only then reads what was asked. It stays in P0's pid namespace, where nothing in the box can see
//! it; its P1 is born in the box's, so the end of the box is its end. Its user namespace is made
//! below the box's: what the box's mounts forbid is locked there by the kernel. Every path is
//! resolved in the box's view, no descriptor of the host is lent, and what the outer box keeps is
//! applied again (ring.rs). Fails closed: whatever does not fit refuses with a record and status 125.
//! Read next: nested/request.rs (what hostile code writes), nested/client.rs (the other side).
//! Source: setns(2); user_namespaces(7); mount_namespaces(7), "Restrictions on mount namespaces".

pub mod births;
pub mod client;
pub mod request;
pub mod ring;
pub mod wire;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::init::Start;
use crate::inside::Asked;
use crate::receipts::Out;
use crate::report::{self, Refusal, Report};
use crate::session::{split_item, Block, Given, Session};
use crate::steps::limits;
use crate::supervise::Supervisor;
use crate::{persist, plan, sys, ulid};

use request::Request;
use ring::Ring;

/// Inner boxes that live at once in one box.
const MAX_LIVE: usize = 64;
/// Records of one inner box that are taken at one wake-up.
const BATCH: usize = 8;
/// A launch record with the names of 2,000 variables.
const RECORD_MAX_BYTES: usize = 128 << 10;
/// plan, request, standard input, output and error.
const FIXED: usize = 5;
const END_ROOM: Duration = Duration::from_secs(2);
const ENDING: &str = "got the end of its command, expected a box that goes on";

/// What the supervisor of an inner box has besides the plan and the request.
pub struct Inner {
    pub ring: Ring,
    /// The user namespace in which its P1 builds.
    pub user: births::Space,
    /// The pid namespace of the box around.
    pub pid: OwnedFd,
    /// /proc of the first supervisor's pid namespace: that of the box does not show us.
    pub proc: OwnedFd,
    /// To the one who asked: its end is ours.
    pub link: OwnedFd,
    pub ignored: u64,
}

/// The inner boxes of one box, as its supervisor holds them.
#[derive(Default)]
pub struct Nests {
    /// The box's namespaces; None until P1 was asked.
    lent: Option<Vec<OwnedFd>>,
    asking: bool,
    waiting: Vec<Asked>,
    live: Vec<(libc::pid_t, OwnedFd)>,
}

impl Nests {
    /// True when P1 is to be asked for the namespaces.
    pub fn ask(&mut self, asked: Vec<Asked>) -> bool {
        let some = !asked.is_empty();
        self.waiting.extend(asked);
        some && self.lent.is_none() && !std::mem::replace(&mut self.asking, true)
    }

    pub fn lend(&mut self, fds: Vec<OwnedFd>) {
        self.lent = Some(fds);
    }

    /// Somebody waits, and what they wait for is here.
    pub fn ready(&self) -> bool {
        self.lent.is_some() && !self.waiting.is_empty()
    }

    /// Requests wait: no other one is taken, whose descriptors would be ours to hold.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn none_lives(&self) -> bool {
        self.live.is_empty()
    }

    /// The mount namespace, for a guard that is put back.
    pub fn mount_space(&self) -> Option<&OwnedFd> {
        self.lent.as_ref()?.get(1)
    }

    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.live.iter().map(|(_, uplink)| uplink.as_raw_fd())
    }

    /// The records that are there; those whose supervisor is gone are reaped.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let mut records = vec![];
        self.live.retain(|(pid, uplink)| {
            let open = drain(uplink, &mut records);
            if !open {
                // SAFETY: our own child, not reaped yet, which has closed its side: it has nothing left to do, and may
                // sleep in the close of what it was given.
                unsafe {
                    libc::kill(*pid, libc::SIGKILL);
                    libc::waitpid(*pid, std::ptr::null_mut(), 0);
                }
            }
            open
        });
        records
    }

    /// Ends what is inside at once; their records are those that came.
    pub fn kill(&self) {
        // SAFETY: our own children, not reaped yet.
        self.live.iter().for_each(|(pid, _)| unsafe {
            libc::kill(*pid, libc::SIGKILL);
        });
    }

    /// The box has ended: what is inside ends by itself, and within a time.
    pub fn finish(&mut self) -> Vec<Vec<u8>> {
        let (mut records, until) = (vec![], Instant::now() + END_ROOM);
        let gone = Refusal::new("nest_busy", "box").detail(ENDING);
        std::mem::take(&mut self.waiting).into_iter().for_each(|asked| refuse(asked, &gone));
        while !self.live.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.kill();
            }
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds: Vec<libc::pollfd> = self.descriptors().map(poll).collect();
            // SAFETY: the array lives through the call.
            unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, left.as_millis() as i32 + 1) };
            records.extend(self.take());
        }
        records
    }
}

/// False at the end.
fn drain(uplink: &OwnedFd, records: &mut Vec<Vec<u8>>) -> bool {
    let mut buffer = vec![0u8; RECORD_MAX_BYTES];
    for _ in 0..BATCH {
        match wire::receive(uplink.as_raw_fd(), &mut buffer) {
            Ok((0, _)) => return false,
            Ok((size, _)) => records.push(buffer[..size.min(RECORD_MAX_BYTES)].to_vec()),
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

/// Why there is no box for one more.
fn busy(box_: &Supervisor) -> Option<String> {
    let live = box_.nests.live.len();
    let full = || (live >= MAX_LIVE).then(|| format!("got {live} boxes in it, expected fewer than {MAX_LIVE}"));
    let spent = || {
        let said = "got more records of boxes in it than the log takes from one box, expected fewer for a while";
        box_.inside.spent().then(|| said.to_string())
    };
    box_.status.map(|_| ENDING.to_string()).or_else(full).or_else(spent)
}

/// Starts a supervisor for each who waits.
pub fn serve(session: &Session, box_: &mut Supervisor, out: &Out, block: &Block) {
    for asked in std::mem::take(&mut box_.nests.waiting) {
        if let Some(why) = busy(box_) {
            refuse(asked, &Refusal::new("nest_busy", "box").detail(why));
            continue;
        }
        let (uplink, theirs) = match wire::pair() {
            Ok(pair) => pair,
            Err(e) => {
                refuse(asked, &Refusal::new("resource", "socket pair").io(&e));
                continue;
            }
        };
        // SAFETY: takes no pointer.
        let parent = unsafe { libc::getpid() };
        // SAFETY: P0 is single-threaded by now.
        match unsafe { sys::fork_into(0) } {
            Ok(0) => {
                // Not before P0 has closed its own: whoever is last may have to wait (wire.rs, `discard`).
                drop(uplink);
                wire::wait_for_word(theirs.as_raw_fd());
                block.wipe();
                let from = From { session, box_, out, parent };
                supervise(&from, asked, theirs, *block);
                // SAFETY: no destructor of P0's may run in its copy.
                unsafe { libc::_exit(0) }
            }
            Ok(pid) => {
                drop(asked);
                let _ = wire::send(uplink.as_raw_fd(), b"g", &[], false);
                box_.nests.live.push((pid, uplink));
            }
            Err(e) => refuse(asked, &Refusal::new("fork_failed", "supervisor").io(&e)),
        }
    }
}

fn refuse(asked: Asked, refusal: &Refusal) {
    tell(asked.link.as_raw_fd(), refusal);
    let Asked { link, mut fds } = asked;
    fds.push(link);
    wire::discard(fds);
}

fn tell(link: RawFd, refusal: &Refusal) {
    let _ = wire::send(link, &[&b"r"[..], &refusal.to_bytes()].concat(), &[], false);
}

/// What the copy of the supervisor around knows.
struct From<'a> {
    session: &'a Session,
    box_: &'a Supervisor,
    out: &'a Out,
    parent: libc::pid_t,
}

/// The child's whole life. Whoever asked is told why there was nothing; of the end, the session speaks.
fn supervise(from: &From, asked: Asked, uplink: OwnedFd, block: Block) {
    let link = asked.link.as_raw_fd();
    let mut held = match Held::take(from, asked, uplink) {
        Ok(held) => held,
        Err(refusal) => return tell(link, &refusal),
    };
    let mut out = Out::nowhere();
    let done = held.run(from, &mut out, block);
    let link = held.link.as_raw_fd();
    if let Err(refusal) = done {
        out.tell_around(&report::to_json(&refusal.record(&out.run_id)).unwrap_or_default());
        tell(link, &refusal);
    }
}

/// Tells whoever asked how the box ended; gives the same.
pub fn say_end(inner: &Inner, code: i32) -> i32 {
    let _ = wire::send(inner.link.as_raw_fd(), &[&b"e"[..], &code.to_le_bytes()].concat(), &[], false);
    code
}

/// Nothing looks into this process, and it ends with its supervisor, until it changes who it is. A signal for the group of that
/// one is none for this box: whoever asked passes on what comes, once.
fn tied(parent: libc::pid_t) -> Result<(), Refusal> {
    let fail = |e: io::Error| Refusal::new("fork_failed", "supervisor").io(&e);
    // SAFETY: takes no pointer.
    sys::check(i64::from(unsafe { libc::setpgid(0, 0) })).map_err(fail)?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(fail)?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map_err(fail)?;
    // SAFETY: takes no pointer.
    match unsafe { libc::getppid() } == parent {
        true => Ok(()),
        false => Err(Refusal::new("caller_gone", "supervisor").detail("got its end, expected one that lives")),
    }
}

/// All that this process has open, its standard streams apart.
struct Held {
    link: OwnedFd,
    uplink: OwnedFd,
    proc: OwnedFd,
    spaces: Vec<OwnedFd>,
    given: Vec<OwnedFd>,
}

impl Held {
    /// Everything else that was P0's is closed.
    fn take(from: &From, asked: Asked, uplink: OwnedFd) -> Result<Held, Refusal> {
        // Closed by our end, when whoever asked has been told: P0 ends us once the uplink is.
        let (asked, uplink) = (ManuallyDrop::new(asked), ManuallyDrop::new(uplink));
        tied(from.parent)?;
        let fail = |e: io::Error| Refusal::new("fds_denied", "descriptors").io(&e);
        let lent = from.box_.nests.lent.as_deref().unwrap_or_default();
        if lent.len() != crate::control::SPACES.len() {
            let why = format!("got {} of its namespaces, expected {}", lent.len(), crate::control::SPACES.len());
            return Err(Refusal::new("namespace_denied", "box").detail(why));
        }
        let proc = match &from.session.inner {
            Some(inner) => own(inner.proc.as_raw_fd()),
            None => sys::open_dir(libc::AT_FDCWD, c"/proc").map_err(fail)?,
        };
        let spaces = lent.iter().map(|fd| own(fd.as_raw_fd())).collect();
        let Asked { link, fds: given } = ManuallyDrop::into_inner(asked);
        let held = ManuallyDrop::new(Held { link, uplink: ManuallyDrop::into_inner(uplink), proc, spaces, given });
        let mut kept: Vec<RawFd> = [&held.link, &held.uplink, &held.proc]
            .into_iter()
            .chain(&held.spaces)
            .chain(&held.given)
            .map(AsRawFd::as_raw_fd)
            .collect();
        kept.sort_unstable();
        let mut next = 3;
        for fd in kept {
            close_from(next, fd - 1).map_err(fail)?;
            next = next.max(fd + 1);
        }
        close_from(next, RawFd::MAX).map_err(fail)?;
        wire::begin_anew();
        Ok(ManuallyDrop::into_inner(held))
    }

    fn run(&mut self, from: &From, out: &mut Out, block: Block) -> Result<i32, Refusal> {
        let given = self.given.len();
        let invalid = |why: String| Refusal::new("nest_invalid", "request").detail(why);
        if given < FIXED {
            return Err(invalid(format!("got {given} descriptors, expected at least {FIXED}")));
        }
        let other = || invalid("got bytes of another form, expected those of this version".to_string());
        let request = request::parse(&read_sealed(&self.given[1])?).ok_or_else(other)?;
        let named = FIXED + usize::from(request.report) + request.kept.len();
        if given != named {
            return Err(invalid(format!("got {given} descriptors, expected the {named} that it names")));
        }
        let report = self.place(&request)?;
        out.run_id = ulid::ulid().map_err(|e| Refusal::new("resource", "random bytes").io(&e))?;
        out.report = Report::new(report);
        out.speaks = !request.report && !request.quiet;
        out.uplink = self.uplink.try_clone().ok();
        let ring = from.session.ring(&from.out.run_id, from.box_.snapshot)?;
        let first = from.session.inner.is_none();
        births::join_user(&self.spaces[0], first, ring.shifted)?;
        tied(from.parent)?;
        let user = limits::while_processes(ring.processes, births::user_space)??;
        births::join(&self.spaces[1], libc::CLONE_NEWNS)?;
        // That of the host is nobody's to join, and where we are.
        if !births::is_ours(&self.proc, &self.spaces[3], "net")? {
            births::join(&self.spaces[3], libc::CLONE_NEWNET)?;
        }
        let take = |fd: &OwnedFd| fd.try_clone().map_err(|e| Refusal::new("fds_denied", "descriptors").io(&e));
        let plan_fd = take(&self.given[0])?;
        let inner = Inner {
            ring,
            user,
            pid: take(&self.spaces[2])?,
            proc: take(&self.proc)?,
            link: take(&self.link)?,
            ignored: request.ignored,
        };
        start(request, plan_fd, inner, out, block)
    }

    /// Every descriptor to the number under which the command finds it; the rest lie above.
    fn place(&mut self, request: &Request) -> Result<Option<OwnedFd>, Refusal> {
        let fail = |e: io::Error| Refusal::new("fds_denied", "descriptors").io(&e);
        let floor = request.kept.last().map_or(3, |last| last + 1);
        let all = [&mut self.link, &mut self.uplink, &mut self.proc];
        for fd in all.into_iter().chain(&mut self.spaces).chain(&mut self.given) {
            *fd = lifted(fd, floor).map_err(fail)?;
        }
        for (at, number) in (0..3).enumerate() {
            duplicate(&self.given[2 + at], number).map_err(fail)?;
        }
        let report = request.report.then(|| self.given.remove(FIXED));
        for (fd, number) in self.given[FIXED..].iter().zip(&request.kept) {
            duplicate(fd, *number).map_err(fail)?;
        }
        self.given.truncate(2);
        Ok(report)
    }
}

fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the other owner is P0's, of which this process is a copy that drops nothing.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn close_from(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: nothing in this process uses them.
    sys::check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

fn lifted(fd: &OwnedFd, floor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the new descriptor is owned at once.
    unsafe {
        let fd = sys::check(i64::from(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, floor)))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

fn duplicate(fd: &OwnedFd, number: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    sys::check(unsafe { libc::syscall(libc::SYS_dup3, fd.as_raw_fd(), number, 0) }).map(drop)
}

/// The bytes of a memfd that nobody can change any more.
fn read_sealed(fd: &OwnedFd) -> Result<Vec<u8>, Refusal> {
    use std::io::Read;
    let fail = |e: io::Error| Refusal::new("nest_invalid", "request").io(&e);
    if !plan::is_sealed(fd.as_raw_fd()) {
        return Err(Refusal::new("nest_invalid", "request").detail("got another descriptor, expected a sealed memfd"));
    }
    let file = File::from(fd.try_clone().map_err(fail)?);
    let size = file.metadata().map_err(fail)?.len();
    if size > request::MAX_BYTES as u64 {
        return Err(Refusal::new("nest_invalid", "request")
            .detail(format!("got {size} bytes, expected {} at most", request::MAX_BYTES)));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    sys::FromStart::of(&file).take(size).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

/// From here on as P0 does it on the host.
fn start(request: Request, plan_fd: OwnedFd, inner: Inner, out: &Out, block: Block) -> Result<i32, Refusal> {
    use std::os::fd::IntoRawFd;
    let strings = |items: Vec<Vec<u8>>| items.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
    let argv =
        strings(request.argv).map_err(|_| Refusal::new("nest_invalid", "argv").detail("got a NUL, expected none"))?;
    let args = Args {
        plan_fd: Some(plan_fd.into_raw_fd()),
        binds: request.binds,
        cwd: request.cwd,
        timeout_ms: request.timeout_ms,
        report_fd: out.report.descriptor(),
        quiet: request.quiet,
        argv,
        ..Args::default()
    };
    let pairs = |items: &[Vec<u8>]| items.iter().map(|item| split_item(item)).collect();
    let given = Given { environ: pairs(&request.environ), set: pairs(&request.set) };
    let start = Start { umask: request.umask, ..Start::inside(inner.ignored) };
    // It is the session's own until the end.
    persist::distant::read_through(inner.proc.as_raw_fd());
    let mut session = Session::open(&args, Some(inner), |_| Ok(given), out)?;
    // It was made while the plan was read.
    session.inner.as_mut().map(|inner| inner.user.hold(&inner.proc)).transpose()?;
    if session.loaded.plan.fds != request.kept {
        // Another number would be one of ours.
        let why =
            format!("got {:?} in the plan, expected those of the request, {:?}", session.loaded.plan.fds, request.kept);
        return Err(Refusal::new("fds_denied", "descriptors").detail(why));
    }
    session.start(start, out, &args, &block)
}

/// proc_pid_status(5), NSpid: the number of a process in each pid namespace that it is in, the
/// innermost last; the one before is that of the box in which it was asked for.
pub fn name_command(inner: &Inner, command: libc::pid_t) {
    use std::io::Read;
    let read = || -> Option<i32> {
        let path = sys::cstr(&format!("{command}/status")).ok()?;
        let mut text = String::new();
        File::from(sys::openat(inner.proc.as_raw_fd(), &path, libc::O_RDONLY, 0).ok()?)
            .read_to_string(&mut text)
            .ok()?;
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        numbers.split_whitespace().rev().nth(1)?.parse().ok()
    };
    let _ = wire::send(inner.link.as_raw_fd(), &client::started(read().unwrap_or(0)), &[], false);
}
