//! The entry point, and what the kernel says at it.
//!
//! Owns the way from the first instruction to `main`: no relocation, no
//! constructor, no question to the processor. The program is linked to a fixed
//! address, so nothing has to be put right before Rust code runs.
//! Source: System V ABI for each architecture, "Process initialization"; getauxval(3).

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_ulong;

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
static TICKS: AtomicUsize = AtomicUsize::new(100);

pub fn page_bytes() -> usize {
    PAGE_BYTES.load(Ordering::Relaxed)
}

pub fn ticks_per_second() -> usize {
    TICKS.load(Ordering::Relaxed)
}

/// Words of the auxiliary vector that are of use.
#[derive(Default)]
struct Facts {
    headers: usize,
    headers_count: usize,
}

impl Facts {
    /// # Safety
    /// `vector` is the kernel's auxiliary vector, ended by AT_NULL.
    unsafe fn read(mut vector: *const usize) -> Facts {
        let mut facts = Facts::default();
        loop {
            // SAFETY: pairs of words up to AT_NULL.
            let (kind, value) = unsafe { (*vector, *vector.add(1)) };
            match kind as c_ulong {
                libc::AT_NULL => return facts,
                libc::AT_PHDR => facts.headers = value,
                libc::AT_PHNUM => facts.headers_count = value,
                libc::AT_PAGESZ => PAGE_BYTES.store(value, Ordering::Relaxed),
                libc::AT_CLKTCK => TICKS.store(value, Ordering::Relaxed),
                _ => {}
            }
            // SAFETY: the end was not reached.
            vector = unsafe { vector.add(2) };
        }
    }
}

#[cfg(all(bare, target_arch = "x86_64"))]
std::arch::global_asm!(
    ".globl _start",
    ".type _start, @function",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {enter}",
    "ud2",
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
    "bl {enter}",
    "brk #1",
    enter = sym enter,
);

/// `stack`: argument count, arguments, null, environment, null, auxiliary vector.
#[cfg(bare)]
unsafe extern "C" fn enter(stack: *const usize) -> ! {
    // SAFETY: the kernel's block, as above; thread-local storage comes before its first use.
    let code = unsafe {
        let (count, argv) = (*stack, stack.add(1));
        let envp = argv.add(count + 1);
        let end = (0..).find(|at| *envp.add(*at) == 0).unwrap_or(0);
        let facts = Facts::read(envp.add(end + 1));
        super::tls::start(facts.headers as *const _, facts.headers_count);
        crate::main(count as libc::c_int, argv.cast(), envp.cast())
    };
    super::shaped::_exit(code)
}
