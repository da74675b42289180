//! Thread-local storage.
//!
//! Owns the layout that compiled code expects around the thread pointer: on x86_64
//! the block ends where the pointer points, at a word that holds the pointer
//! itself; on aarch64 it begins two words after it. Source: "ELF Handling For
//! Thread-Local Storage", variants I and II; arch_prctl(2).

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::Elf64_Phdr;

/// The block of the first thread: std uses some hundred bytes.
const FIRST_BYTES: usize = 4096;

#[repr(align(64))]
struct Area(#[allow(dead_code)] [u8; FIRST_BYTES]);

/// The program's PT_TLS header and the number of bytes to set aside for a thread.
static IMAGE: AtomicPtr<Elf64_Phdr> = AtomicPtr::new(std::ptr::null_mut());
static NEEDED: AtomicUsize = AtomicUsize::new(64);

/// Room that `place` needs.
pub fn bytes() -> usize {
    NEEDED.load(Ordering::Relaxed)
}

/// Gives the first thread its storage.
///
/// # Safety
/// Called once, before anything thread-local is used, with the program's own headers.
#[cfg(bare)]
pub unsafe fn start(headers: &'static [Elf64_Phdr]) {
    static mut FIRST: Area = Area([0; FIRST_BYTES]);
    // SAFETY: a second thread does not exist yet.
    unsafe {
        if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_TLS) {
            IMAGE.store(std::ptr::from_ref(header).cast_mut(), Ordering::Relaxed);
            NEEDED.store((header.p_memsz + 2 * header.p_align) as usize + 64, Ordering::Relaxed);
        }
        if bytes() > FIRST_BYTES {
            super::signals::abort();
        }
        let pointer = place(std::ptr::addr_of_mut!(FIRST).cast());
        #[cfg(target_arch = "x86_64")]
        super::raw(libc::SYS_arch_prctl, [ARCH_SET_FS, pointer as usize]);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("msr tpidr_el0, {}", in(reg) pointer, options(nostack, preserves_flags));
    }
}

/// asm/prctl.h
#[cfg(all(bare, target_arch = "x86_64"))]
const ARCH_SET_FS: usize = 0x1002;

/// Fills a zeroed area of `bytes()`; the thread pointer for it.
///
/// # Safety
/// The area is writable and nobody else's.
pub unsafe fn place(area: *mut u8) -> *mut u8 {
    // SAFETY: null, or a header that lives as long as the program.
    let Some(image) = (unsafe { IMAGE.load(Ordering::Relaxed).as_ref() }) else { return area };
    let (size, align, address) = (image.p_memsz as usize, (image.p_align as usize).max(16), image.p_vaddr as usize);
    let (pointer, block) = if cfg!(target_arch = "x86_64") {
        let pointer = (area as usize + size + align).next_multiple_of(align);
        (pointer, pointer - size - (address.wrapping_add(size).wrapping_neg() & (align - 1)))
    } else {
        let pointer = (area as usize).next_multiple_of(align);
        (pointer, pointer + 16 + (address.wrapping_sub(16) & (align - 1)))
    };
    // SAFETY: `bytes()` leaves room for the block, two roundings and the word at the pointer.
    unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, block as *mut u8, image.p_filesz as usize);
        if cfg!(target_arch = "x86_64") {
            *(pointer as *mut usize) = pointer;
        }
    }
    pointer as *mut u8
}
