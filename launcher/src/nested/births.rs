//! Where the first process of an inner box is born.
//!
//! Owns three forks of the inner supervisor: one that is a user namespace and nothing else, one
//! that stands in the box's pid namespace for a moment, and P1, its child. P1 belongs to the
//! supervisor (CLONE_PARENT), which stays out of every box. Source: setns(2), pid_namespaces(7);
//! fs/namespace.c: mount_too_revealing, lock_mnt_tree.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::control::{self, Event, Received};
use crate::plan::Ids;
use crate::report::Refusal;
use crate::steps::userns;
use crate::sys;

fn denied(what: &str) -> impl Fn(io::Error) -> Refusal + '_ {
    move |e| Refusal::new("namespace_denied", what).io(&e)
}

pub fn join(space: &OwnedFd, kind: i32) -> Result<(), Refusal> {
    // SAFETY: the descriptor is ours.
    let ret = unsafe { libc::setns(space.as_raw_fd(), kind) };
    sys::check(i64::from(ret)).map(drop).map_err(denied("box"))
}

/// Whether this process is in that namespace. `proc` is that of its own pid namespace.
pub fn is_ours(proc: &OwnedFd, space: &OwnedFd, name: &str) -> Result<bool, Refusal> {
    let path = format!("self/ns/{name}");
    let own = sys::openat2(proc.as_raw_fd(), &path, libc::O_RDONLY, 0).map_err(denied("own"))?;
    let [own, other] = [&own, space].map(|fd| sys::fstat(fd.as_raw_fd()).map(|st| (st.st_dev, st.st_ino)));
    Ok(own.map_err(denied("own"))? == other.map_err(denied("box"))?)
}

/// The user namespace of the outermost box: from there its descendants are ours as well.
pub fn join_user(space: &OwnedFd, first: bool, shifted: bool) -> Result<(), Refusal> {
    if first {
        join(space, libc::CLONE_NEWUSER)?;
        if shifted {
            userns::become_box_root(Ids::Shifted { kernel_uid: 0, kernel_gid: 0, owner_uid: 0, owner_gid: 0 })?;
        }
    }
    Ok(())
}

/// A user namespace with the ids of this process and no others: in the making, until it is held.
pub struct Space {
    maker: Option<(libc::pid_t, OwnedFd)>,
    held: Option<OwnedFd>,
}

impl Space {
    /// Gives it its ids and holds it; who made it is gone then. `proc` is that of this process's pid namespace.
    pub fn hold(&mut self, proc: &OwnedFd) -> Result<(), Refusal> {
        let Some((pid, ready)) = self.maker.take() else { return Ok(()) };
        let made = match word(&ready, 1) {
            Some(_) => map_and_hold(proc.as_raw_fd(), pid),
            None => Err(Refusal::new("userns_denied", "box").detail("got the end of who made it, expected its word")),
        };
        // SAFETY: our own child; the namespace lives on in the open file.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
        self.held = Some(made?);
        Ok(())
    }

    fn get(&self) -> Result<&OwnedFd, Refusal> {
        let nothing = || Refusal::new("userns_denied", "box").detail("got none, expected one that is held");
        self.held.as_ref().ok_or_else(nothing)
    }
}

/// Starts to make one. Its maker ends with this process.
pub fn user_space() -> Result<Space, Refusal> {
    let (ready, say) = sys::pipe().map_err(denied("pipe"))?;
    // SAFETY: no failure.
    let parent = unsafe { libc::getpid() };
    // SAFETY: this process is single-threaded; the child only waits to be killed.
    let pid =
        unsafe { sys::fork_into(libc::CLONE_NEWUSER) }.map_err(|e| Refusal::new("userns_denied", "box").io(&e))?;
    if pid == 0 {
        // SAFETY: plain waiting; dies with us, who may be gone already, or has nothing to wait for. Seen by
        // nobody in a box, it may be looked at: only so can its maps be written.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
            libc::write(say.as_raw_fd(), c"r".as_ptr().cast(), 1);
            while libc::getppid() == parent {
                libc::pause();
            }
            libc::_exit(0)
        }
    }
    Ok(Space { maker: Some((pid, ready)), held: None })
}

fn map_and_hold(proc: RawFd, pid: libc::pid_t) -> Result<OwnedFd, Refusal> {
    // SAFETY: no failure.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let fail = |name: &str, e: &io::Error| Refusal::new("map_denied", name).io(e);
    let maps = [
        ("setgroups", "deny".to_string()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ];
    for (name, text) in maps {
        let path = sys::cstr(&format!("{pid}/{name}")).map_err(|e| fail(name, &e))?;
        let file = sys::openat(proc, &path, libc::O_WRONLY, 0).map_err(|e| fail(name, &e))?;
        // SAFETY: pointer and length describe the string.
        let wrote = unsafe { libc::write(file.as_raw_fd(), text.as_ptr().cast(), text.len()) };
        sys::check(wrote as i64).map_err(|e| fail(name, &e))?;
    }
    let path = format!("{pid}/ns/user");
    sys::openat2(proc, &path, libc::O_RDONLY, 0).map_err(|e| fail("ns/user", &e))
}

/// A fork whose copy is process 1 of a new pid namespace below `space`, and a child of ours.
///
/// clone(2) makes a pid namespace below the one that the maker is in, and only below that: so one fork
/// goes ahead, its child stands in the box, and that one's sibling is born.
///
/// # Safety
/// As for `sys::fork_into`.
pub unsafe fn fork_inside(space: &OwnedFd) -> Result<libc::pid_t, Refusal> {
    let (ours, theirs) = control::pair().map_err(denied("socket"))?;
    let (told, say) = sys::pipe().map_err(denied("pipe"))?;
    // SAFETY: the caller's promise.
    let ahead = unsafe { sys::fork_into(0) }.map_err(|e| Refusal::new("fork_failed", "box").io(&e))?;
    if ahead == 0 {
        let joined = join(space, libc::CLONE_NEWPID).map_err(|refusal| refusal.errno.unwrap_or(libc::EIO));
        // SAFETY: as above; with CLONE_PARENT a new process is our parent's child.
        let within = joined.and_then(|()| unsafe { sys::fork_into(libc::CLONE_PARENT) }.map_err(|e| number(&e)));
        if within == Ok(0) {
            // SAFETY: as above.
            match unsafe { sys::fork_into(libc::CLONE_NEWPID | libc::CLONE_PARENT) } {
                // The kernel says to the other side who sent it.
                Ok(0) if control::send_event(theirs.as_raw_fd(), &Event::Continued).is_ok() => return Ok(0),
                Ok(_) => {}
                Err(e) => drop(control::send_event(theirs.as_raw_fd(), &Event::Stopped(number(&e)))),
            }
            // SAFETY: no destructor of the supervisor's may run here.
            unsafe { libc::_exit(0) }
        }
        let answer = within.unwrap_or_else(|errno| -errno);
        // SAFETY: four bytes that live through the call; as above.
        unsafe {
            libc::write(say.as_raw_fd(), std::ptr::addr_of!(answer).cast(), 4);
            libc::_exit(0)
        }
    }
    drop((say, theirs));
    let within = word(&told, 4).unwrap_or(-libc::EIO);
    // SAFETY: our own children, both of which end by themselves.
    unsafe {
        libc::waitpid(ahead, std::ptr::null_mut(), 0);
        if within > 0 {
            libc::waitpid(within, std::ptr::null_mut(), 0);
        }
    }
    let refused = |errno: i32| Refusal::new("namespace_denied", "pid").errno(errno);
    let mut poll = libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that outlives the call. Its end comes when nobody of theirs is left to speak.
    unsafe { libc::poll(&mut poll, 1, -1) };
    match control::receive_event(ours.as_raw_fd()).ok().flatten() {
        _ if within <= 0 => Err(refused(-within)),
        Some(Received { event: Event::Continued, pid, .. }) if pid > 0 => Ok(pid),
        Some(Received { event: Event::Stopped(errno), .. }) => Err(refused(errno)),
        _ => Err(Refusal::new("namespace_denied", "pid").detail("got the end of its first process, expected its word")),
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// As P1, in the user namespace of the box around and its view: a proc of the new pid namespace can
/// only be had where what covers the old one is not locked. Then into the inner one.
pub fn settle(user: &Space) -> Result<OwnedFd, Refusal> {
    let attrs = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOEXEC;
    let proc = sys::new_fs("proc", &[], attrs).map_err(|e| Refusal::new("proc_denied", "/proc").io(&e))?;
    join(user.get()?, libc::CLONE_NEWUSER)?;
    let spaces = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    // SAFETY: no pointers.
    sys::check(i64::from(unsafe { libc::unshare(spaces) })).map_err(denied("mount"))?;
    Ok(proc)
}

/// The number in the first bytes of a pipe; None when its writer is gone.
fn word(pipe: &OwnedFd, size: usize) -> Option<i32> {
    let mut value = 0i32;
    // SAFETY: at most four bytes, into a number of four.
    let got = unsafe { libc::read(pipe.as_raw_fd(), std::ptr::addr_of_mut!(value).cast(), size) };
    (got == size as isize).then_some(value)
}
