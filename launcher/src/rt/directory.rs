//! Reading directories as opendir(3) and readdir(3) do.
//!
//! Owns the buffer between them and getdents64(2), whose records are the C structure.

use std::ptr::null_mut;

use libc::{c_char, c_int, c_void, dirent64, size_t, ssize_t};

use super::shaped::open;
use super::{answer, calls, raw};

/// # Safety
/// `to` has room for `size` bytes.
unsafe fn getdents(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller's buffer.
    answer(unsafe { raw(libc::SYS_getdents64, [fd as usize, to as usize, size]) })
}

/// What opendir(3) hands out.
struct Directory {
    fd: c_int,
    at: usize,
    end: usize,
    entries: Entries,
}

#[repr(align(8))]
struct Entries([u8; 8192]);

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut Directory {
    // SAFETY: the caller's path.
    let fd = unsafe { open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0) };
    if fd < 0 {
        return null_mut();
    }
    Box::into_raw(Box::new(Directory { fd, at: 0, end: 0, entries: Entries([0; 8192]) }))
}

/// The kernel's record is the C structure. Null with errno untouched is the end.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn readdir64(dir: *mut Directory) -> *mut dirent64 {
    // SAFETY: the caller has it from opendir and lets nobody else use it meanwhile.
    let dir = unsafe { &mut *dir };
    if dir.at >= dir.end {
        // SAFETY: the buffer lives as long as the directory.
        let got = unsafe { getdents(dir.fd, dir.entries.0.as_mut_ptr().cast(), dir.entries.0.len()) };
        if got <= 0 {
            return null_mut();
        }
        (dir.at, dir.end) = (0, got as usize);
    }
    let entry: *mut dirent64 = dir.entries.0[dir.at..].as_mut_ptr().cast();
    // SAFETY: the kernel writes whole records, aligned to 8, up to `end`.
    dir.at += usize::from(unsafe { (*entry).d_reclen });
    entry
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn dirfd(dir: *mut Directory) -> c_int {
    // SAFETY: the caller has it from opendir.
    unsafe { (*dir).fd }
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn closedir(dir: *mut Directory) -> c_int {
    // SAFETY: the caller has it from opendir and uses it no more.
    unsafe { calls::close(Box::from_raw(dir).fd) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_directory_has_the_names_that_the_standard_library_finds() {
        let ours = || {
            let mut names = BTreeSet::new();
            // SAFETY: the directory is closed after its last use; names are terminated.
            unsafe {
                let dir = opendir(c"/usr/bin".as_ptr());
                assert!(dirfd(dir) > 2);
                let next = || std::ptr::NonNull::new(readdir64(dir));
                names.extend(
                    std::iter::from_fn(next).map(|entry| CStr::from_ptr((*entry.as_ptr()).d_name.as_ptr()).to_owned()),
                );
                assert_eq!(closedir(dir), 0);
                assert!(opendir(c"/none".as_ptr()).is_null());
            }
            names
        };
        let theirs = std::fs::read_dir("/usr/bin").unwrap().map(|entry| entry.unwrap().file_name());
        let theirs: BTreeSet<_> = theirs.map(|name| std::ffi::CString::new(name.as_encoded_bytes()).unwrap()).collect();
        assert_eq!(
            ours().into_iter().filter(|name| ![c".", c".."].contains(&name.as_c_str())).collect::<BTreeSet<_>>(),
            theirs
        );
    }
}
