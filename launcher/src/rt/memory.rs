//! The memory routines that compiled code calls by name.
//!
//! Owns memcpy, memmove, memset, memcmp, bcmp and strlen. Each loop holds an empty
//! piece of assembly: without it the optimiser knows the loop for what it is and
//! makes it a call of the very function that it stands in.

use std::arch::asm;
use std::mem::size_of;

use libc::{c_int, c_void, size_t};

/// One step of a loop.
type Chunk = u128;
const CHUNK: usize = size_of::<Chunk>();
/// From here on the processor's own string instructions are faster.
#[cfg(target_arch = "x86_64")]
const STRING_BYTES: usize = 512;

/// Seen by the optimiser as something that may touch all memory.
#[inline(always)]
fn barrier() {
    // SAFETY: no instruction at all.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

/// # Safety
/// Every byte that the arguments name is valid for what is done with it.
#[inline(always)]
unsafe fn load<T>(from: *const u8) -> T {
    // SAFETY: the caller has a whole T of readable bytes there; T is an integer.
    unsafe { from.cast::<T>().read_unaligned() }
}

/// # Safety
/// Every byte that the arguments name is valid for what is done with it.
#[inline(always)]
unsafe fn store<T>(to: *mut u8, value: T) {
    // SAFETY: the caller has room for a whole T there.
    unsafe { to.cast::<T>().write_unaligned(value) }
}

/// Moves one or two T that cover `size` bytes together; all is read before a byte is written.
///
/// # Safety
/// Every byte that the arguments name is valid for what is done with it.
#[inline(always)]
unsafe fn ends<T>(to: *mut u8, from: *const u8, size: usize) {
    let last = size - size_of::<T>();
    // SAFETY: `size` bytes are valid on both sides and hold at least one T.
    unsafe {
        let (a, b): (T, T) = (load(from), load(from.add(last)));
        store(to, a);
        store(to.add(last), b);
    }
}

/// Up to two chunks, overlapping or not.
///
/// # Safety
/// Every byte that the arguments name is valid for what is done with it.
#[inline(always)]
unsafe fn copy_small(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: each arm moves within `size` bytes.
    unsafe {
        match size {
            0 => {}
            1 => store(to, load::<u8>(from)),
            2..=3 => ends::<u16>(to, from, size),
            4..=7 => ends::<u32>(to, from, size),
            8..=15 => ends::<u64>(to, from, size),
            _ => ends::<Chunk>(to, from, size),
        }
    }
}

/// Right also when the target begins before the source: the last chunk is read first.
///
/// # Safety
/// Every byte that the arguments name is valid for what is done with it.
#[inline(always)]
unsafe fn copy_up(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: more than two chunks; every access is within `size` bytes.
    unsafe {
        let last: Chunk = load(from.add(size - CHUNK));
        let mut at = 0;
        while at < size - CHUNK {
            store::<Chunk>(to.add(at), load(from.add(at)));
            at += CHUNK;
            barrier();
        }
        store(to.add(size - CHUNK), last);
    }
}

/// Right also when the target begins after the source: the first chunk is read first.
///
/// # Safety
/// Every byte that the arguments name is valid for what is done with it.
#[inline(always)]
unsafe fn copy_down(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: as above.
    unsafe {
        let first: Chunk = load(from);
        let mut end = size;
        while end > CHUNK {
            end -= CHUNK;
            store::<Chunk>(to.add(end), load(from.add(end)));
            barrier();
        }
        store(to, first);
    }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, size: size_t) -> *mut c_void {
    let (target, source) = (to.cast::<u8>(), from.cast::<u8>());
    if size <= 2 * CHUNK {
        // SAFETY: the caller's contract.
        unsafe { copy_small(target, source, size) };
        return to;
    }
    #[cfg(target_arch = "x86_64")]
    if size >= STRING_BYTES {
        // SAFETY: the caller's contract; the direction flag is clear (System V ABI).
        unsafe {
            asm!("rep movsb", inout("rdi") target => _, inout("rsi") source => _, inout("rcx") size => _,
                options(nostack, preserves_flags));
        }
        return to;
    }
    // SAFETY: the caller's contract.
    unsafe { copy_up(target, source, size) };
    to
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, size: size_t) -> *mut c_void {
    let (target, source) = (to.cast::<u8>(), from.cast::<u8>());
    // SAFETY: the caller's contract; each kind of overlap has its direction.
    unsafe {
        if size <= 2 * CHUNK {
            copy_small(target, source, size);
        } else if (target as usize).wrapping_sub(source as usize) >= size {
            copy_up(target, source, size);
        } else {
            copy_down(target, source, size);
        }
    }
    to
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, size: size_t) -> *mut c_void {
    let target = to.cast::<u8>();
    #[cfg(target_arch = "x86_64")]
    if size >= STRING_BYTES {
        // SAFETY: the caller's contract; the direction flag is clear (System V ABI).
        unsafe {
            asm!("rep stosb", inout("rdi") target => _, inout("rcx") size => _, in("al") byte as u8,
                options(nostack, preserves_flags));
        }
        return to;
    }
    let word = Chunk::from_ne_bytes([byte as u8; CHUNK]);
    let mut at = 0;
    // SAFETY: every store is within `size` bytes.
    unsafe {
        while at + CHUNK <= size {
            store(target.add(at), word);
            at += CHUNK;
            barrier();
        }
        while at < size {
            store(target.add(at), byte as u8);
            at += 1;
            barrier();
        }
    }
    to
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn memcmp(a: *const c_void, b: *const c_void, size: size_t) -> c_int {
    let (a, b) = (a.cast::<u8>(), b.cast::<u8>());
    let mut at = 0;
    // SAFETY: every load is within `size` bytes.
    unsafe {
        while at + size_of::<u64>() <= size && load::<u64>(a.add(at)) == load::<u64>(b.add(at)) {
            at += size_of::<u64>();
            barrier();
        }
        while at < size {
            let (x, y): (u8, u8) = (load(a.add(at)), load(b.add(at)));
            if x != y {
                return c_int::from(x) - c_int::from(y);
            }
            at += 1;
            barrier();
        }
    }
    0
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn bcmp(a: *const c_void, b: *const c_void, size: size_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { memcmp(a, b, size) }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> size_t {
    let mut at = 0;
    // SAFETY: the caller's text ends with a zero byte.
    unsafe {
        while load::<u8>(text.add(at)) != 0 {
            at += 1;
            barrier();
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 700;

    fn sizes() -> impl Iterator<Item = usize> {
        (0..100).chain([127, 128, 129, 255, 256, 511, 512, 513, 600])
    }

    fn bytes() -> Vec<u8> {
        (0..ROOM).map(|n| (n * 7 + n / 256) as u8).collect()
    }

    #[test]
    fn copies_of_every_size_and_overlap_are_those_of_the_standard_library() {
        for size in sizes() {
            for (to, from) in [(0, 0), (0, 1), (1, 0), (0, 15), (15, 0), (0, 40), (40, 3), (90, 0), (3, 90)] {
                let (mut ours, mut theirs) = (bytes(), bytes());
                theirs.copy_within(from..from + size, to);
                let base = ours.as_mut_ptr();
                // SAFETY: both ranges are within the vector.
                unsafe { memmove(base.add(to).cast(), base.add(from).cast(), size) };
                assert_eq!(ours, theirs, "{size} bytes from {from} to {to}");
                let (source, mut ours, mut theirs) = (bytes(), vec![0; ROOM], vec![0; ROOM]);
                theirs[to..to + size].copy_from_slice(&source[from..from + size]);
                // SAFETY: as above, and the vectors are two.
                unsafe { memcpy(ours.as_mut_ptr().add(to).cast(), source.as_ptr().add(from).cast(), size) };
                assert_eq!(ours, theirs, "{size} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn filling_and_comparing_look_at_exactly_the_bytes_that_are_named() {
        for size in sizes() {
            let (mut ours, mut theirs) = (bytes(), bytes());
            theirs[3..3 + size].fill(0x5a);
            // SAFETY: the range is within the vector.
            unsafe { memset(ours.as_mut_ptr().add(3).cast(), 0x15a, size) };
            assert_eq!(ours, theirs, "{size}");
            for at in 0..size {
                let (mut a, mut b) = (bytes(), bytes());
                (a[at], b[at], b[size]) = (0xff, 0x01, !b[size]);
                // SAFETY: the ranges are within the vectors.
                let answer = |a: &[u8], b: &[u8]| unsafe { memcmp(a.as_ptr().cast(), b.as_ptr().cast(), size) };
                assert!(answer(&a, &b) > 0 && answer(&b, &a) < 0 && answer(&b, &b) == 0, "{at} of {size}");
            }
        }
        // SAFETY: the texts end with a zero byte.
        assert_eq!([c"", c"a", c"some text"].map(|text| unsafe { strlen(text.as_ptr().cast()) }), [0, 1, 9]);
    }
}
