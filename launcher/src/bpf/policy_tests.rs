//! Tests of the policy of both architectures: the compiled filters must answer as the
//! promises `kernel.surface`, `tty.injection` and `limits` say, with refused and
//! allowed arguments for every rule.

use super::policy::Action;
use super::tests::{commands, subjects};

const ALLOW: Action = Action::Allow;
const DONE: Action = Action::Errno(0);
const EPERM: Action = Action::Errno(1);
const ENOSYS: Action = Action::ENOSYS;
const EPROTONOSUPPORT: Action = Action::Errno(93);
const EAFNOSUPPORT: Action = Action::Errno(97);

#[test]
fn the_kernel_surface_of_the_promise_is_refused() {
    let refused = "setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick \
        mount_setattr bpf perf_event_open userfaultfd add_key request_key keyctl init_module finit_module delete_module \
        kexec_load kexec_file_load fanotify_init open_by_handle_at syslog reboot swapon iopl ioperm acct quotactl";
    let missing = "clone3 openat2 io_uring_setup io_uring_enter io_uring_register modify_ldt statmount lsm_set_self_attr file_setattr";
    for s in commands() {
        for (names, answer) in [(refused, EPERM), (missing, ENOSYS)] {
            for name in names.split_whitespace().filter(|name| s.has(name)) {
                s.check(name, &[], answer);
                s.check(name, &[u64::MAX; 6], answer);
            }
        }
    }
}

#[test]
fn what_programs_and_inner_sandboxes_need_is_allowed() {
    let allowed = "read write execve execveat ptrace process_vm_readv process_vm_writev pidfd_getfd seccomp prctl rseq futex \
        landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_create linkat renameat2 fchdir getrandom \
        name_to_handle_at mkdirat fchownat setxattr inotify_init1 shmget mq_unlink kill mbind statx faccessat2 fork vfork \
        arch_prctl poll link mkdir rename";
    for s in commands() {
        for name in allowed.split_whitespace().filter(|name| s.has(name)) {
            s.check(name, &[], ALLOW);
            s.check(name, &[u64::MAX; 6], ALLOW);
        }
    }
}

#[test]
fn clone_and_unshare_make_no_namespace_but_threads_work() {
    const NAMESPACES: [u64; 7] = [0x20000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
    for s in commands() {
        for flag in NAMESPACES {
            s.check("clone", &[flag | 17], EPERM);
            s.check("clone", &[flag | 0xffff_ffff_0000_0000], EPERM);
            s.check("unshare", &[flag], EPERM);
            s.check("unshare", &[flag | 0x400], EPERM);
        }
        s.check("unshare", &[0x80], EPERM); // CLONE_NEWTIME
        s.check("unshare", &[1 << 33], EPERM); // of a kernel to come
        s.check("unshare", &[0x40600], ALLOW);
        s.check("clone", &[17], ALLOW); // fork
        s.check("clone", &[0x003d_0f00], ALLOW); // pthread_create
        s.check("clone", &[0x4111], ALLOW); // posix_spawn
    }
}

#[test]
fn terminal_injection_is_refused_also_with_high_bits_in_the_request() {
    for s in commands() {
        for request in [0x5412, 0x541C, 0x5423] {
            s.check("ioctl", &[0, request], EPERM);
            s.check("ioctl", &[0, request | 1 << 32], EPERM);
            s.check("ioctl", &[u64::MAX, request | 0xffff_ffff_0000_0000], EPERM);
            s.check("ioctl", &[request, request - 1], ALLOW);
            s.check("ioctl", &[request, request + 1], ALLOW);
        }
        for request in [0x5401, 0x5413, 0x540F, 0x5410, 0x4020_940D] {
            s.check("ioctl", &[0, request], ALLOW); // TCGETS TIOCGWINSZ TIOCGPGRP TIOCSPGRP FICLONERANGE
        }
    }
}

/// (call, position of the mode, position of the flags).
const MODES: [(&str, usize, Option<usize>); 10] = [
    ("chmod", 1, None),
    ("fchmod", 1, None),
    ("fchmodat", 2, None),
    ("fchmodat2", 2, None),
    ("creat", 1, None),
    ("mknod", 1, None),
    ("mknodat", 2, None),
    ("open", 2, Some(1)),
    ("openat", 3, Some(2)),
    ("mq_open", 2, Some(1)),
];

fn with_mode((_, mode_at, flags_at): (&str, usize, Option<usize>), mode: u64, flags: u64) -> [u64; 6] {
    let mut args = [0; 6];
    args[mode_at] = mode;
    if let Some(at) = flags_at {
        args[at] = flags;
    }
    args
}

#[test]
fn no_call_makes_a_setuid_file() {
    for s in commands() {
        for call in MODES.into_iter().filter(|(name, ..)| s.has(name)) {
            for flags in [0x40, 0x41, 0xC1, 0x41_0000 | 0x40_0000] {
                s.check(call.0, &with_mode(call, 0o4755, flags), EPERM);
                s.check(call.0, &with_mode(call, 0o4000 | 1 << 40, flags), EPERM);
                s.check(call.0, &with_mode(call, 0o100_4000, flags), EPERM);
                s.check(call.0, &with_mode(call, 0o1777, flags), ALLOW);
                s.check(call.0, &with_mode(call, 0o100_644, flags), ALLOW);
            }
        }
    }
}

#[test]
fn a_mode_without_creation_is_garbage_and_not_looked_at() {
    for s in commands() {
        for call in MODES.into_iter().filter(|(name, _, flags)| s.has(name) && flags.is_some()) {
            for flags in [0, 1, 2, 0x8_0000, 0x1_0000] {
                s.check(call.0, &with_mode(call, u64::MAX, flags), ALLOW);
            }
        }
    }
}

#[test]
fn setgid_is_refused_to_root_callers_alone() {
    for s in commands() {
        let answer = if s.filter.name == "default-root" { EPERM } else { ALLOW };
        for call in MODES.into_iter().filter(|(name, ..)| s.has(name)) {
            s.check(call.0, &with_mode(call, 0o2755, 0x41), answer);
        }
        s.check("mkdirat", &[0, 0, 0o6777], ALLOW); // the kernel takes these bits away
    }
}

#[test]
fn sockets_are_local_internet_and_route_netlink() {
    for s in commands() {
        for family in (0..64).chain([1 << 31]).filter(|f| ![1, 2, 10, 16].contains(f)) {
            s.check("socket", &[family, 1, 0], EAFNOSUPPORT);
            s.check("socket", &[family | 1 << 32, 3, 0], EAFNOSUPPORT);
        }
        for flags in [0, 0x80000, 0x80800] {
            s.check("socket", &[1, 1 | flags, 0], ALLOW);
            s.check("socket", &[16, 3 | flags, 0], ALLOW);
            for family in [2, 10] {
                for (kind, protocol) in [(1, 0), (1, 6), (1, 262), (2, 0), (2, 17), (2, 1), (2, 58)] {
                    s.check("socket", &[family, kind | flags, protocol], ALLOW);
                }
                for kind in [0, 3, 4, 5, 6, 10] {
                    s.check("socket", &[family, kind | flags, 0], EPERM); // 10: SOCK_PACKET
                }
                for protocol in [2, 33, 115, 132, 136, 255, 256] {
                    s.check("socket", &[family, 1 | flags, protocol], EPROTONOSUPPORT);
                }
            }
        }
        for protocol in (1..32).chain([1 << 31]) {
            s.check("socket", &[16, 3, protocol], EPROTONOSUPPORT);
        }
        s.check("socket", &[16 | 1 << 32, 3, 9], EPROTONOSUPPORT);
    }
}

#[test]
fn socket_pairs_are_local() {
    for s in commands() {
        for kind in [1, 2, 5, 0x80801] {
            s.check("socketpair", &[1, kind, 0], ALLOW);
        }
        s.check("socketpair", &[1, 3, 0], EPERM);
        for family in [0, 2, 10, 16, 30, 40] {
            s.check("socketpair", &[family, 1, 0], EAFNOSUPPORT);
        }
    }
}

#[test]
fn the_core_limit_cannot_be_changed_and_others_can() {
    const PTR: u64 = 0x7fff_0000_1000;
    for s in commands() {
        for resource in [4, 4 | 1 << 32] {
            s.check("setrlimit", &[resource, PTR], DONE);
            s.check("prlimit64", &[0, resource, PTR, 0], DONE);
            s.check("prlimit64", &[0, resource, PTR, PTR], EPERM);
            s.check("prlimit64", &[0, resource, 1 << 32, 1 << 32], EPERM);
            s.check("prlimit64", &[0, resource, 0, PTR], ALLOW);
        }
        for resource in [0, 3, 5, 7, 15] {
            s.check("setrlimit", &[resource, PTR], ALLOW);
            s.check("prlimit64", &[0, resource, PTR, PTR], ALLOW);
        }
    }
}

#[test]
fn personality_is_limited_to_harmless_values() {
    for s in commands() {
        for value in [0, 8, 0x20000, 0x20008, 0x40000, 0xffff_ffff, u64::MAX] {
            s.check("personality", &[value], ALLOW);
        }
        for value in [1, 0x10_0000, 0x40_0000, 0x20_0000, 0x44_0000, 0x800_0000] {
            s.check("personality", &[value], EPERM);
        }
    }
}

#[test]
fn the_init_of_a_box_can_reap_and_read_but_not_write_execute_or_map_code() {
    for s in subjects().into_iter().filter(|s| s.filter.name == "init") {
        for name in "wait4 waitid read write ppoll recvmsg sendmsg kill exit_group rt_sigprocmask getdents64".split(' ')
        {
            s.check(name, &[], ALLOW);
        }
        for name in
            "execve execveat clone socket connect ptrace process_vm_writev prctl mount unlinkat mprotect seccomp"
                .split(' ')
        {
            s.check(name, &[], EPERM);
        }
        s.check("openat", &[0, 0, 0x8_0000], ALLOW);
        for flags in [1, 2, 0x40, 0x200, 0x41_0000 | 0x40_0000, 0x41 | 1 << 32] {
            s.check("openat", &[0, 0, flags], EPERM);
        }
        s.check("mmap", &[0, 4096, 3], ALLOW);
        s.check("mmap", &[0, 4096, 7], EPERM);
        s.check("ioctl", &[0, 0x5412], EPERM);
    }
}
