//! Step 13: installs one of the system call filters compiled into the launcher.
//!
//! Owns: the choice by name and the kernel call. What a filter allows is reviewed
//! data in `seccomp/<arch>.toml`; `build.rs` turns it into the programs used here.
//!
//! Fails closed: an unknown name or a refusal of the kernel is an error, and the
//! caller must not exec.

use std::io;

/// Programs and names generated from `seccomp/<arch>.toml`.
mod compiled {
    include!(concat!(env!("OUT_DIR"), "/seccomp_filters.rs"));
}

/// Names of the filters: `default`, `default-root` for a box, `landlock`, `landlock-offline` for one without
/// namespaces, `init` for its process 1, and `trace`, which comes on top of one of the first two.
pub const FILTERS: &[&str] = compiled::NAMES;

/// Number and name of each call that the filter `trace` stops.
pub const TRACED: &[(u32, &str)] = compiled::TRACED;

/// Tells whether a filter is one for commands: a plan can name no other.
pub fn confines_commands(filter: &str) -> bool {
    matches!(filter, "default" | "default-root")
}

/// Installs `filter` for the calling thread and all that it starts; nothing undoes it.
///
/// no_new_privs must be set before. The flag SPEC_ALLOW keeps kernels before 5.16
/// from switching on the speculative store bypass mitigation for every process with a filter
/// (tens of percent in some programs; later kernels dropped that by themselves):
/// side channels between the parts of one process are no promise of a box.
///
/// Source: seccomp(2); kernel commit 2f46993d83ff ("x86: change default to
/// spec_store_bypass_disable=prctl spectre_v2_user=prctl").
pub fn install(filter: &str) -> io::Result<()> {
    let index = FILTERS.iter().position(|name| *name == filter);
    let index = index.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such filter"))?;
    let program = compiled::PROGRAMS[index];
    let prog = libc::sock_fprog {
        len: program.len() as libc::c_ushort, // at most 4096, checked when compiled
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: `prog` and the static program it points to live through the call, and
    // the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            std::ptr::addr_of!(prog),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `calls` in a child under `filter`; the errno of each, 0 for success.
    fn errnos(filter: &str, calls: &[(i64, [u64; 4])]) -> Vec<i32> {
        let mut pipe = [0; 2];
        // SAFETY: `pipe` has room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let mut results = vec![-1i32; calls.len()];
        let size = std::mem::size_of_val(&results[..]);
        // SAFETY: the child only makes system calls, on memory that it owns, and ends
        // with _exit; it takes no lock that another thread may have held at the fork.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let failed = install(filter).is_err();
                for (result, (nr, [a, b, c, d])) in results.iter_mut().zip(calls) {
                    *result = if libc::syscall(*nr, *a, *b, *c, *d) < 0 { *libc::__errno_location() } else { 0 };
                }
                libc::write(pipe[1], results.as_ptr().cast(), size);
                libc::_exit(i32::from(failed));
            }
            libc::close(pipe[1]);
            let read = libc::read(pipe[0], results.as_mut_ptr().cast(), size);
            libc::close(pipe[0]);
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            assert_eq!((read, status), (size as isize, 0), "filter {filter}");
        }
        results
    }

    #[test]
    fn the_kernel_takes_every_filter_and_answers_by_it() {
        const UNKNOWN: i64 = 4000;
        for filter in ["default", "default-root"] {
            let calls = [
                (libc::SYS_getpid, [0; 4]),
                (libc::SYS_setns, [0; 4]),
                (libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0, 0]),
                (libc::SYS_unshare, [libc::CLONE_FS as u64, 0, 0, 0]),
                (libc::SYS_clone3, [0; 4]),
                (libc::SYS_ioctl, [0, libc::TIOCSTI | 1 << 32, 0, 0]),
                (libc::SYS_socket, [libc::AF_VSOCK as u64, 1, 0, 0]),
                (libc::SYS_socket, [libc::AF_INET as u64, 1, 0, 0]),
                (UNKNOWN, [0; 4]),
                (-1, [0; 4]),
            ];
            let got = errnos(filter, &calls);
            let (perm, none) = (libc::EPERM, libc::ENOSYS);
            assert_eq!(got, [0, perm, perm, 0, none, perm, libc::EAFNOSUPPORT, 0, none, none], "{filter}");
        }
        let calls = [(libc::SYS_getpid, [0; 4]), (libc::SYS_socket, [1, 1, 0, 0]), (UNKNOWN, [0; 4])];
        assert_eq!(errnos("init", &calls), [0, libc::EPERM, libc::EPERM]);
    }

    #[test]
    fn without_namespaces_the_kernel_refuses_what_they_keep_apart() {
        const PTR: u64 = 0x1000;
        let (perm, family) = (libc::EPERM, libc::EAFNOSUPPORT);
        for (filter, internet) in [("landlock", 0), ("landlock-offline", family)] {
            let calls = [
                (libc::SYS_socket, [libc::AF_UNIX as u64, 1, 0, 0]),
                (libc::SYS_socket, [libc::AF_UNIX as u64 | 1 << 32, 2, 0, 0]),
                (libc::SYS_socket, [libc::AF_INET as u64, 1, 0, 0]),
                (libc::SYS_socketpair, [libc::AF_UNIX as u64, 2 | libc::SOCK_CLOEXEC as u64, 0, PTR]),
                (libc::SYS_shmget, [1, 4096, 0o600, 0]),
                (libc::SYS_semget, [1, 1, 0o600, 0]),
                (libc::SYS_msgget, [1, 0o600, 0, 0]),
                (libc::SYS_mq_open, [PTR, 0, 0, 0]),
                (libc::SYS_prlimit64, [1, 0, PTR, 0]),
                (libc::SYS_setns, [0; 4]),
                // A pair that stays connected gets as far as the address for its descriptors.
                (libc::SYS_socketpair, [libc::AF_UNIX as u64, 1, 0, 0]),
                (libc::SYS_socketpair, [libc::AF_UNIX as u64, 5, 0, 0]),
                (libc::SYS_prlimit64, [0, 7, 0, 0]),
            ];
            let fault = libc::EFAULT;
            let expected =
                [family, family, internet, perm, perm, perm, perm, perm, perm, perm, fault, fault, 0].to_vec();
            assert_eq!(errnos(filter, &calls), expected, "{filter}");
        }
    }

    #[test]
    fn the_seccomp_call_itself_stays_reachable_for_inner_sandboxes() {
        let answer = errnos("default-root", &[(libc::SYS_seccomp, [2, 0, 0, 0])]);
        // SECCOMP_GET_ACTION_AVAIL with a null pointer: reached the kernel's own check.
        assert_eq!(answer, [libc::EFAULT]);
    }

    #[test]
    fn an_unknown_name_installs_nothing() {
        assert_eq!(install("defualt").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
