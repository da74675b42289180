//! Reading what a traced process points at.
//!
//! Owns bounds: whatever the pointer, at most one path or one address is read. A
//! pointer to nothing is no name (the kernel answers EFAULT to the call itself).
//! Source: process_vm_readv(2).

/// Never across the end of a page: what lies behind may not be mapped.
const PAGE: u64 = 4096;
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// A string up to its zero; None where there is none within PATH_MAX bytes.
pub fn string(pid: libc::pid_t, at: u64) -> Option<Vec<u8>> {
    let mut text = vec![];
    while text.len() < PATH_MAX {
        let from = at.wrapping_add(text.len() as u64);
        let want = ((PAGE - from % PAGE) as usize).min(PATH_MAX - text.len());
        let piece = bytes(pid, from, want)?;
        match piece.iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.extend_from_slice(&piece[..end]);
                return Some(text);
            }
            None => text.extend_from_slice(&piece),
        }
    }
    None
}

/// Exactly so many bytes.
pub fn bytes(pid: libc::pid_t, at: u64, size: usize) -> Option<Vec<u8>> {
    let mut found = vec![0u8; size];
    let ours = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: size };
    let theirs = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: size };
    // SAFETY: ours describes `found`, which outlives the call; theirs is an address in the other
    // process, which the kernel checks. Whole words: the last argument lies on the stack.
    let got =
        unsafe { libc::syscall(libc::SYS_process_vm_readv, pid as usize, &ours, 1usize, &theirs, 1usize, 0usize) };
    (got == size as i64).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_their_zero_and_at_the_edge_of_what_is_mapped() {
        let me = std::process::id() as libc::pid_t;
        // SAFETY: a new mapping of two pages, the second of which is taken away; only the first is written.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::munmap(at.wrapping_byte_add(4096), 4096);
            std::slice::from_raw_parts_mut(at.cast::<u8>(), 4096)
        };
        page[4093..].copy_from_slice(b"/a\0");
        let at = page.as_ptr() as u64;
        assert_eq!(string(me, at + 4093).unwrap(), b"/a");
        page[4095] = b'b';
        assert_eq!(string(me, at + 4093), None);
        assert_eq!((string(me, 0), string(me, u64::MAX - 3), bytes(me, at, 8192)), (None, None, None));
    }

    #[test]
    fn what_is_longer_than_any_path_is_no_name() {
        let me = std::process::id() as libc::pid_t;
        let mut text = vec![b'x'; 5000];
        text.push(0);
        assert_eq!(string(me, text.as_ptr() as u64), None);
        text[4095] = 0;
        assert_eq!(string(me, text.as_ptr() as u64).unwrap().len(), 4095);
    }
}
