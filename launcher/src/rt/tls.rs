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

/// Ends a program whose linker places the block otherwise: it would read its neighbour's words.
#[cfg(bare)]
pub fn check() {
    // SAFETY: a cell of this thread. Volatile, because the compiler knows that nobody writes it.
    if MARK.with(|mark| unsafe { mark.as_ptr().read_volatile() }) != MARK_VALUE {
        super::signals::abort();
    }
}

#[cfg(bare)]
const MARK_VALUE: u64 = 0x5374_6f63_6b61_6465;

#[cfg(bare)]
thread_local! {
    static MARK: std::cell::Cell<u64> = const { std::cell::Cell::new(MARK_VALUE) };
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
    let (size, address) = (image.p_memsz as usize, image.p_vaddr as usize);
    let (pointer, block) = layout(area as usize, size, image.p_align as usize, address);
    // SAFETY: `bytes()` leaves room for the block, two roundings and the word at the pointer.
    unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, block as *mut u8, image.p_filesz as usize);
        if cfg!(target_arch = "x86_64") {
            *(pointer as *mut usize) = pointer;
        }
    }
    pointer as *mut u8
}

/// Where the thread pointer and the block go, as linkers compute it: the block keeps
/// the address of the image modulo the image's own alignment.
fn layout(area: usize, size: usize, align: usize, address: usize) -> (usize, usize) {
    let (align, coarse) = (align.max(1), align.max(16));
    if cfg!(target_arch = "x86_64") {
        let pointer = (area + size + coarse).next_multiple_of(coarse);
        return (pointer, pointer - size - (address.wrapping_add(size).wrapping_neg() & (align - 1)));
    }
    let pointer = area.next_multiple_of(coarse);
    (pointer, pointer + 16 + (address.wrapping_sub(16) & (align - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lies_in_its_area_and_is_placed_as_the_linker_places_it() {
        for (size, align, address) in [(0x70, 8, 0x2ec290), (0x68, 8, 0x2ec290), (0x78, 8, 0x2ec288), (5, 64, 0x4000)] {
            let (area, end) = (0x7000, 0x7000 + size + 2 * align + 64);
            let (pointer, block) = layout(area, size, align, address);
            let apart = if cfg!(target_arch = "x86_64") {
                assert!(pointer + 8 <= end);
                pointer - block == size.next_multiple_of(align)
            } else {
                block - pointer == 16_usize.next_multiple_of(align)
            };
            assert!(apart && pointer % 16 == 0 && block % align == address % align, "{size} {align}");
            assert!(block >= area && block + size <= end, "{size} {align}");
        }
    }
}
