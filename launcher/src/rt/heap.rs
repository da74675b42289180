//! The heap of the release build.
//!
//! Owns the allocator's pages and its lock. A region is mapped and filled in one
//! step of the kernel, because a launch uses most of it and each page that is touched
//! for the first time would be a fault of its own. The allocator reuses what is
//! freed: a box that talks to its supervisor for days must not make it grow.
//! Source: mmap(2), MAP_POPULATE.

use std::cell::UnsafeCell;
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use dlmalloc::{Allocator, Dlmalloc};
use libc::{c_int, c_void, size_t};

use super::{calls, raw, start};

/// What a launch at standard allocates; more than is used costs a microsecond a page.
const FIRST_BYTES: usize = 128 << 10;
/// What the heap grows by.
const MORE_BYTES: usize = 64 << 10;
/// The allocator gives back whole steps of this many bytes: pages, not regions.
const STEP_BYTES: usize = 4096;

struct Pages {
    first: AtomicBool,
}

// SAFETY: regions come from the kernel alone, whole and zeroed, and go back to it
// only when the allocator says so.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let first = self.first.swap(false, Ordering::Relaxed);
        let step = if first { FIRST_BYTES } else { MORE_BYTES };
        let Some(size) = size.checked_next_multiple_of(step) else { return (null_mut(), 0, 0) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { calls::mmap64(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        match at {
            libc::MAP_FAILED => (null_mut(), 0, 0),
            at => (at.cast(), size, 0),
        }
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: the region is the allocator's own.
        match unsafe { calls::mremap(at.cast::<c_void>(), old, new, flags) } {
            libc::MAP_FAILED => null_mut(),
            at => at.cast(),
        }
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the allocator has nothing left in the region's end.
        old > new && unsafe { calls::munmap(at.add(new).cast(), old - new) == 0 }
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: the allocator has nothing left in the region.
        unsafe { calls::munmap(at.cast(), size) == 0 }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        start::page_bytes()
    }
}

struct Heap {
    held: AtomicBool,
    inner: UnsafeCell<Dlmalloc<Pages>>,
}

// SAFETY: `inner` is touched only by whoever holds the lock.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap {
    held: AtomicBool::new(false),
    inner: UnsafeCell::new(
        const {
            let mut inner = Dlmalloc::new_with_allocator(Pages { first: AtomicBool::new(true) });
            assert!(inner.set_granularity(STEP_BYTES));
            inner
        },
    ),
};

impl Heap {
    /// There are at most two threads, for a moment, and a fork only while the second uses no heap.
    fn with<T>(&self, act: impl FnOnce(&mut Dlmalloc<Pages>) -> T) -> T {
        while self.held.swap(true, Ordering::Acquire) {
            // SAFETY: no pointers.
            unsafe { raw(libc::SYS_sched_yield, []) };
        }
        // SAFETY: the lock is ours; nothing below allocates.
        let result = act(unsafe { &mut *self.inner.get() });
        self.held.store(false, Ordering::Release);
        result
    }
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: any size is good.
    HEAP.with(|heap| unsafe { heap.c_malloc(size) }).cast()
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else { return null_mut() };
    // SAFETY: any size is good; the alignment is that of malloc.
    HEAP.with(|heap| unsafe { heap.calloc(size, 2 * size_of::<usize>()) }).cast()
}

/// The error is the answer, not errno.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    // SAFETY: the caller's alignment is a power of two.
    let block = HEAP.with(|heap| unsafe { heap.c_memalign(align, size) });
    // SAFETY: the caller's pointer.
    unsafe { *to = block.cast() };
    if block.is_null() {
        libc::ENOMEM
    } else {
        0
    }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn realloc(at: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: the caller's block, or null, comes from here.
    HEAP.with(|heap| unsafe { heap.c_realloc(at.cast(), size) }).cast()
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn free(at: *mut c_void) {
    // SAFETY: as above.
    HEAP.with(|heap| unsafe { heap.c_free(at.cast()) });
}

/// Gives the unused end of the heap back to the kernel.
pub fn trim() {
    // SAFETY: pages without a live block are unmapped.
    HEAP.with(|heap| unsafe { heap.trim(0) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_is_used_again_and_what_is_moved_keeps_its_bytes() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            // SAFETY: each block is used within its size and freed once.
            unsafe {
                let (mut aligned, block) = (null_mut(), malloc(5000).cast::<u8>());
                assert_eq!((posix_memalign(&mut aligned, 256, 100), aligned as usize % 256), (0, 0));
                seen.insert(block as usize);
                block.write_bytes(7, 5000);
                let block = realloc(block.cast(), 300_000).cast::<u8>();
                assert!((0..5000).all(|at| *block.add(at) == 7));
                free(block.cast());
                free(aligned);
                let zeroed = calloc(1000, 8).cast::<u8>();
                assert!((0..8000).all(|at| *zeroed.add(at) == 0));
                zeroed.write_bytes(9, 8000);
                free(zeroed.cast());
            }
        }
        assert!(seen.len() < 10 && calloc(usize::MAX, 2).is_null(), "{}", seen.len());
        trim();
    }
}
