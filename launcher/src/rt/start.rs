//! The entry point, and what the kernel says at it.
//!
//! Owns the way from the first instruction to `main`: no relocation, no
//! constructor (std has one, which keeps the arguments for `std::env::args`), no
//! question to the processor. The program is linked to a fixed address, so nothing
//! has to be put right before Rust code runs.
//! Source: System V ABI for each architecture, "Process initialization"; getauxval(3).

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_ulong;

/// A stack of our own: a caller may have left us 32 KB of the other (setrlimit(2), RLIMIT_STACK), and walks of trees
/// go as deep as these; the supervisor of a box inside a box runs on top of the one around it, thirty levels at most.
/// Not touched, it costs an address range.
#[cfg(all(bare, target_arch = "x86_64"))]
const STACK_BYTES: usize = 1 << 20;

/// Pairs of kind and value, ended by AT_NULL; null in a build with a C library.
static AUXILIARY: AtomicPtr<usize> = AtomicPtr::new(null_mut());

#[cfg_attr(bare, no_mangle)]
extern "C" fn getauxval(kind: c_ulong) -> c_ulong {
    let mut pair = AUXILIARY.load(Ordering::Relaxed).cast_const();
    while !pair.is_null() {
        // SAFETY: the kernel's vector lives as long as the process, and its end was not reached.
        let (found, value) = unsafe { (*pair as c_ulong, *pair.add(1) as c_ulong) };
        match found {
            libc::AT_NULL => break,
            found if found == kind => return value,
            // SAFETY: as above.
            _ => pair = unsafe { pair.add(2) },
        }
    }
    0
}

pub fn page_bytes() -> usize {
    match getauxval(libc::AT_PAGESZ) {
        0 => 4096,
        bytes => bytes as usize,
    }
}

pub fn ticks_per_second() -> usize {
    match getauxval(libc::AT_CLKTCK) {
        0 => 100,
        ticks => ticks as usize,
    }
}

#[cfg(all(bare, target_arch = "x86_64"))]
std::arch::global_asm!(
    ".globl _start",
    ".type _start, @function",
    "_start:",
    "xor ebp, ebp",
    "mov r12, rsp",
    // mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)
    "mov eax, 9",
    "xor edi, edi",
    "mov esi, {stack}",
    "mov edx, 3",
    "mov r10d, 0x20022",
    "mov r8, -1",
    "xor r9d, r9d",
    "syscall",
    "xor esi, esi",
    "cmp rax, -4096",
    "ja 2f",
    "mov rsi, rax",
    "lea rsp, [rax + {stack}]",
    "2:",
    "mov rdi, r12",
    "and rsp, -16",
    "call {enter}",
    "ud2",
    stack = const STACK_BYTES,
    enter = sym enter,
);

#[cfg(all(bare, target_arch = "aarch64"))]
std::arch::global_asm!(
    ".globl _start",
    ".type _start, %function",
    "_start:",
    "mov x29, xzr",
    "mov x30, xzr",
    "mov x0, sp",
    "mov x1, xzr",
    "bl {enter}",
    "brk #1",
    enter = sym enter,
);

/// `stack`: argument count, arguments, null, environment, null, auxiliary vector. `own`: the lowest byte of the
/// stack that this runs on, or null on the kernel's.
///
/// # Safety
/// As for the C function of this name.
#[cfg(bare)]
unsafe extern "C" fn enter(stack: *const usize, own: *mut libc::c_void) -> ! {
    // SAFETY: the kernel's block, as above; thread-local storage comes before its first use. Nothing is
    // on the lowest page yet, and what would grow onto it must end.
    unsafe {
        if !own.is_null() {
            super::calls::mprotect(own, 4096, libc::PROT_NONE);
        }
        let (count, argv) = (*stack, stack.add(1));
        let envp = argv.add(count + 1);
        let end = (0..).find(|at| *envp.add(*at) == 0).unwrap_or(0);
        AUXILIARY.store(envp.add(end + 1).cast_mut(), Ordering::Relaxed);
        let headers = getauxval(libc::AT_PHDR) as *const libc::Elf64_Phdr;
        let headers = std::slice::from_raw_parts(headers, getauxval(libc::AT_PHNUM) as usize);
        super::tls::start(headers);
        run(headers, count as libc::c_int, argv, envp)
    }
}

/// A function of its own: the compiler takes the thread pointer for constant within
/// one, and may read it before `enter` has set it.
///
/// # Safety
/// Called once, by `enter`, with the kernel's block.
#[cfg(bare)]
#[inline(never)]
unsafe fn run(headers: &[libc::Elf64_Phdr], count: libc::c_int, argv: *const usize, envp: *const usize) -> ! {
    super::tls::check();
    seal(headers);
    // SAFETY: the kernel's arguments, as the C start-up code would pass them.
    super::shaped::_exit(unsafe { crate::main(count, argv.cast(), envp.cast()) })
}

/// What is constant once the program runs, read-only from here on (PT_GNU_RELRO).
#[cfg(bare)]
fn seal(headers: &[libc::Elf64_Phdr]) {
    let page = page_bytes();
    for header in headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
        let (from, end) = (header.p_vaddr as usize & !(page - 1), (header.p_vaddr + header.p_memsz) as usize);
        // SAFETY: the linker keeps what is written later off these pages.
        if unsafe { super::calls::mprotect(from as *mut _, (end & !(page - 1)) - from, libc::PROT_READ) } != 0 {
            super::signals::abort();
        }
    }
}
