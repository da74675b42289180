//! Threads, as far as `std::thread` needs them.
//!
//! Owns one mapping per thread: a guard page, the stack, thread-local storage and a
//! word that the kernel clears when the thread is gone, by which it is waited for.
//! Attributes hold the size of the stack and nothing else. Values that std keeps in
//! keys are not destroyed with a thread: ours leaves a few dozen bytes and lives once.
//! Source: clone(2), CLONE_CHILD_CLEARTID; futex(2).

use std::mem::size_of;
use std::ptr::{addr_of_mut, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_char, c_int, c_uint, c_ulong, c_void, pthread_attr_t, pthread_key_t, pthread_t, size_t};

use super::{calls, raw, start, tls};

const STACK_BYTES: usize = 64 << 10;
const SHARE_ALL: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// At the end of a thread's mapping; its address is the `pthread_t`.
#[repr(C)]
struct Thread {
    mapping: *mut c_void,
    size: usize,
    /// The thread's id while it lives. Source: set_tid_address(2).
    alive: AtomicU32,
    answer: *mut c_void,
}

/// What a new thread finds at the top of its stack.
#[repr(C)]
struct First {
    body: extern "C" fn(*mut First) -> !,
    itself: *mut First,
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    thread: *mut Thread,
    padding: usize,
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pthread_create(
    made: *mut pthread_t,
    attributes: *const pthread_attr_t,
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let page = start::page_bytes();
    // SAFETY: null, or attributes that pthread_attr_init has made.
    let stack = if attributes.is_null() { STACK_BYTES } else { unsafe { *attributes.cast::<usize>() } };
    let stack = stack.next_multiple_of(page);
    let size = page + stack + (tls::bytes() + size_of::<Thread>() + 64).next_multiple_of(page);
    // SAFETY: a new mapping that only this thread and the new one know.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = calls::mmap64(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            return libc::EAGAIN;
        }
        if calls::mprotect(mapping, page, libc::PROT_NONE) != 0 {
            calls::munmap(mapping, size);
            return libc::EAGAIN;
        }
        let top = mapping.cast::<u8>().add(page + stack);
        let pointer = tls::place(top);
        let end = mapping.cast::<u8>().add(size - size_of::<Thread>());
        let thread = ((end as usize) & !15) as *mut Thread;
        thread.write(Thread { mapping, size, alive: AtomicU32::new(0), answer: null_mut() });
        let first = top.sub(size_of::<First>()).cast::<First>();
        first.write(First { body, itself: first, function, argument, thread, padding: 0 });
        let answer = clone_thread(SHARE_ALL as c_ulong, first, addr_of_mut!((*thread).alive).cast(), pointer);
        if answer < 0 {
            calls::munmap(mapping, size);
            return -answer as c_int;
        }
        *made = thread as pthread_t;
    }
    0
}

extern "C" fn body(first: *mut First) -> ! {
    // SAFETY: written by our parent, which keeps the mapping until we are gone.
    unsafe {
        (*(*first).thread).answer = ((*first).function)((*first).argument);
        loop {
            raw(libc::SYS_exit, [0]);
        }
    }
}

/// Waits until the kernel no longer uses the stack, then gives it back.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pthread_join(thread: pthread_t, answer: *mut *mut c_void) -> c_int {
    let thread = thread as *mut Thread;
    // SAFETY: the caller has it from pthread_create and joins it once.
    unsafe {
        loop {
            let id = (*thread).alive.load(Ordering::Acquire);
            if id == 0 {
                break;
            }
            raw(libc::SYS_futex, [addr_of_mut!((*thread).alive) as usize, libc::FUTEX_WAIT as usize, id as usize, 0]);
        }
        if let Some(answer) = answer.as_mut() {
            *answer = (*thread).answer;
        }
        calls::munmap((*thread).mapping, (*thread).size)
    }
}

extern "C" {
    /// clone(2) for a new stack: the parent returns, the child calls `First::body`.
    fn clone_thread(flags: c_ulong, stack: *mut First, id: *mut c_uint, pointer: *mut u8) -> isize;
}

// The id goes to the parent's word before the child runs and is cleared after it.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl clone_thread",
    ".type clone_thread, @function",
    "clone_thread:",
    "mov eax, {clone}",
    "mov r10, rdx",
    "mov r8, rcx",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    "pop rax",
    "pop rdi",
    "call rax",
    "ud2",
    "2: ret",
    clone = const libc::SYS_clone,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl clone_thread",
    ".type clone_thread, %function",
    "clone_thread:",
    "mov x4, x2",
    "mov x8, {clone}",
    "svc #0",
    "cbnz x0, 2f",
    "mov x29, xzr",
    "mov x30, xzr",
    "ldp x1, x0, [sp], #16",
    "blr x1",
    "brk #1",
    "2: ret",
    clone = const libc::SYS_clone,
);

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pthread_attr_init(attributes: *mut pthread_attr_t) -> c_int {
    // SAFETY: the caller's structure, whose first word is ours to use.
    unsafe { *attributes.cast::<usize>() = STACK_BYTES };
    0
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pthread_attr_setstacksize(attributes: *mut pthread_attr_t, size: size_t) -> c_int {
    // SAFETY: as above.
    unsafe { *attributes.cast::<usize>() = size };
    0
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn pthread_attr_destroy(_attributes: *mut pthread_attr_t) -> c_int {
    0
}

/// A thread that is never joined keeps its mapping until the process ends.
#[cfg_attr(bare, no_mangle)]
extern "C" fn pthread_detach(_thread: pthread_t) -> c_int {
    0
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn pthread_self() -> pthread_t {
    0
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn pthread_setname_np(_thread: pthread_t, _name: *const c_char) -> c_int {
    0
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn pthread_key_create(key: *mut pthread_key_t, _destructor: *const c_void) -> c_int {
    // SAFETY: the caller's key. std takes 0 for "none yet".
    unsafe { *key = 1 };
    0
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn pthread_key_delete(_key: pthread_key_t) -> c_int {
    0
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn pthread_setspecific(_key: pthread_key_t, _value: *const c_void) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    static SEEN: AtomicU32 = AtomicU32::new(0);

    /// Uses no thread-local storage: that of the test's C library is not there.
    extern "C" fn count(argument: *mut c_void) -> *mut c_void {
        SEEN.fetch_add(argument as usize as u32, Ordering::SeqCst);
        argument.wrapping_byte_add(1)
    }

    #[test]
    fn a_thread_runs_to_its_end_and_gives_its_answer() {
        for round in 1..=200 {
            let (mut thread, mut answer) = (0, null_mut());
            // SAFETY: the thread touches no memory but its own and a counter.
            unsafe {
                assert_eq!(pthread_create(&mut thread, std::ptr::null(), count, round as *mut c_void), 0);
                assert_eq!(pthread_join(thread, &mut answer), 0);
            }
            assert_eq!(answer as usize, round + 1);
        }
        assert_eq!(SEEN.load(Ordering::SeqCst), 200 * 201 / 2);
    }
}
