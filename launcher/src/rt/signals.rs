//! Signal sets, dispositions and masks.
//!
//! Owns the difference between C's set of 1,024 bits and the kernel's of 64. No
//! handler can be installed: the launcher reads signals from a descriptor, and a
//! handler would need a way back that only C libraries provide (sigreturn(2)).

use std::mem::size_of;
use std::ptr::{addr_of, addr_of_mut, null};

use libc::{c_int, c_uint, sighandler_t, siginfo_t, sigset_t, timespec};

use super::{answer, calls, fail, raw};

/// The kernel's set.
type Bits = u64;
const SET_BYTES: usize = size_of::<Bits>();

/// `struct sigaction` of the kernel on both architectures.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: Bits,
}

fn bit(signal: c_int) -> Option<Bits> {
    (1..=64).contains(&signal).then(|| 1 << (signal - 1))
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigemptyset(set: *mut sigset_t) -> c_int {
    // SAFETY: the caller's set, plain data.
    unsafe { set.write_bytes(0, 1) };
    0
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigfillset(set: *mut sigset_t) -> c_int {
    // SAFETY: the caller's set, plain data.
    unsafe { set.write_bytes(0xff, 1) };
    0
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigaddset(set: *mut sigset_t, signal: c_int) -> c_int {
    let Some(bit) = bit(signal) else { return fail(libc::EINVAL) as c_int };
    // SAFETY: the caller's set, of which the first 64 bits are the kernel's.
    unsafe { *set.cast::<Bits>() |= bit };
    0
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigismember(set: *const sigset_t, signal: c_int) -> c_int {
    let Some(bit) = bit(signal) else { return fail(libc::EINVAL) as c_int };
    // SAFETY: as above.
    c_int::from(unsafe { *set.cast::<Bits>() } & bit != 0)
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's sets, or null; each has room for the kernel's bits.
    answer(unsafe { raw(libc::SYS_rt_sigprocmask, [how as usize, set as usize, old as usize, SET_BYTES]) }) as c_int
}

/// The error is the answer, not errno. The call itself changes one thread only.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: as above.
    let kernel = unsafe { raw(libc::SYS_rt_sigprocmask, [how as usize, set as usize, old as usize, SET_BYTES]) };
    kernel.wrapping_neg() as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigpending(set: *mut sigset_t) -> c_int {
    // SAFETY: the caller's set.
    answer(unsafe { raw(libc::SYS_rt_sigpending, [set as usize, SET_BYTES]) }) as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, time: *const timespec) -> c_int {
    // SAFETY: the caller's structures, or null.
    answer(unsafe { raw(libc::SYS_rt_sigtimedwait, [set as usize, info as usize, time as usize, SET_BYTES]) }) as c_int
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, set: *const sigset_t, flags: c_int) -> c_int {
    // SAFETY: the caller's set.
    answer(unsafe { raw(libc::SYS_signalfd4, [fd as usize, set as usize, SET_BYTES, flags as usize]) }) as c_int
}

fn set_action(signal: c_int, new: *const Action, old: *mut Action) -> isize {
    // SAFETY: both are null or live through the call.
    answer(unsafe { raw(libc::SYS_rt_sigaction, [signal as usize, new as usize, old as usize, SET_BYTES]) })
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let mut wanted = Action::default();
    // SAFETY: the caller's structure, or null.
    let given = unsafe { new.as_ref() };
    if let Some(given) = given {
        if ![libc::SIG_DFL, libc::SIG_IGN].contains(&given.sa_sigaction) {
            return fail(libc::ENOSYS) as c_int;
        }
        (wanted.handler, wanted.flags) = (given.sa_sigaction, given.sa_flags as c_uint as usize);
    }
    let mut was = Action::default();
    let ret = set_action(signal, given.map_or(null(), |_| addr_of!(wanted)), addr_of_mut!(was));
    // SAFETY: the caller's structure, or null.
    if let (0, Some(old)) = (ret, unsafe { old.as_mut() }) {
        (old.sa_sigaction, old.sa_flags) = (was.handler, was.flags as c_int);
        // SAFETY: the set has room for the kernel's bits.
        unsafe { *addr_of_mut!(old.sa_mask).cast() = was.mask };
    }
    ret as c_int
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler) {
        fail(libc::ENOSYS);
        return libc::SIG_ERR;
    }
    let wanted = Action { handler, ..Action::default() };
    let mut was = Action::default();
    match set_action(signal, &wanted, &mut was) {
        0 => was.handler,
        _ => libc::SIG_ERR,
    }
}

/// As in C: blocked or ignored, SIGABRT still ends the process.
#[cfg_attr(bare, no_mangle)]
pub extern "C" fn abort() -> ! {
    let only: Bits = 1 << (libc::SIGABRT - 1);
    signal(libc::SIGABRT, libc::SIG_DFL);
    // SAFETY: the set lives through the call; the signal goes to ourselves.
    unsafe {
        raw(libc::SYS_rt_sigprocmask, [libc::SIG_UNBLOCK as usize, addr_of!(only) as usize, 0, SET_BYTES]);
        calls::kill(calls::getpid(), libc::SIGABRT);
        // Process 1 of a pid namespace cannot be killed from within (pid_namespaces(7)).
        loop {
            raw(libc::SYS_exit_group, [127]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    fn empty() -> sigset_t {
        // SAFETY: plain data.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn sets_are_read_alike_by_the_c_library() {
        let (mut one, mut all) = (empty(), empty());
        // SAFETY: the sets live through the calls.
        unsafe {
            assert_eq!((sigemptyset(&mut one), sigaddset(&mut one, 40), sigfillset(&mut all)), (0, 0, 0));
            for signal in (1..=64).filter(|signal| ![32, 33].contains(signal)) {
                assert_eq!(libc::sigismember(&one, signal), c_int::from(signal == 40));
                assert_eq!(sigismember(&one, signal), c_int::from(signal == 40));
                assert_eq!((libc::sigismember(&all, signal), sigismember(&all, signal)), (1, 1));
            }
            assert_eq!((sigaddset(&mut one, 0), sigaddset(&mut one, 65), sigismember(&one, 65)), (-1, -1, -1));
        }
    }

    #[test]
    fn dispositions_are_set_and_read_and_a_handler_is_refused() {
        let number = libc::SIGRTMIN() + 9;
        // SAFETY: the structures are plain data that live through the calls.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            let mut old = new;
            new.sa_sigaction = libc::SIG_IGN;
            assert_eq!(sigaction(number, &new, &mut old), 0);
            assert_eq!(old.sa_sigaction, libc::SIG_DFL);
            assert_eq!((libc::sigaction(number, null(), &mut old), old.sa_sigaction), (0, libc::SIG_IGN));
            assert_eq!(signal(number, libc::SIG_DFL), libc::SIG_IGN);
            new.sa_sigaction = bit as *const () as usize;
            assert_eq!((sigaction(number, &new, null_mut()), signal(number, 4096)), (-1, libc::SIG_ERR));
        }
    }

    #[test]
    fn a_blocked_signal_is_pending_and_taken() {
        let number = libc::SIGRTMIN() + 10;
        let (mut only, mut old, mut pending) = (empty(), empty(), empty());
        let none = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the sets live through the calls; the signal goes to this thread alone.
        unsafe {
            sigaddset(&mut only, number);
            assert_eq!(pthread_sigmask(libc::SIG_BLOCK, &only, &mut old), 0);
            raw(libc::SYS_tkill, [raw(libc::SYS_gettid, []), number as usize]);
            assert_eq!((sigpending(&mut pending), sigismember(&pending, number)), (0, 1));
            assert_eq!(sigtimedwait(&only, null_mut(), &none), number);
            assert_eq!(sigtimedwait(&only, null_mut(), &none), -1);
            assert_eq!(*crate::rt::__errno_location(), libc::EAGAIN);
            assert_eq!(
                (sigprocmask(libc::SIG_SETMASK, &old, null_mut()), pthread_sigmask(99, &only, null_mut())),
                (0, libc::EINVAL)
            );
        }
    }
}
