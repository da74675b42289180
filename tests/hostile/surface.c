/* Asks the kernel, call by call, what this process may do: namespaces, mounts, bpf, keys,
 * sockets, setuid bits, foreign entry points. Prints one JSON object: name -> "ok", an error
 * name, a signal, or "inert" (the call said yes and did nothing). Arguments are chosen so that
 * nothing changes even for root without a box: each probe runs in a child of its own, and with
 * the argument "private" in mount and uts namespaces of its own, "user" in a user namespace.
 * Usage: surface plain|private|user   (the current directory must be writable) */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define NR_FCHMODAT2 452
#define INERT 9999
#define CALL(...) (syscall(__VA_ARGS__) < 0 ? errno : 0)

struct probe {
    const char *name;
    int (*run)(long a, long b, long c);
    long a, b, c;
};

static int do_unshare(long flags, long b, long c) { return unshare(flags) ? errno : 0; }

static int do_clone(long flags, long b, long c)
{
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) return errno;
    if (pid == 0) _exit(0);
    waitpid(pid, NULL, __WALL);
    return 0;
}

static int do_clone3(long flags, long b, long c)
{
    uint64_t args[11] = {flags, 0, 0, 0, SIGCHLD};
    long pid = syscall(SYS_clone3, args, 64);
    if (pid < 0) return errno;
    if (pid == 0) _exit(0);
    waitpid(pid, NULL, __WALL);
    return 0;
}

static int do_setns(long b, long a, long c)
{
    int fd = open("/proc/self/ns/uts", O_RDONLY);
    if (fd < 0) return errno;
    return CALL(SYS_setns, fd, 0);
}

static int do_mount(long a, long b, long c) { return mount("none", "/tmp", "tmpfs", 0, NULL) ? errno : 0; }
static int do_bindself(long a, long b, long c) { return mount("/", "/", NULL, MS_BIND, NULL) ? errno : 0; }
static int do_remount(long a, long b, long c) { return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) ? errno : 0; }
static int do_umount(long a, long b, long c) { return CALL(SYS_umount2, "/no-such-mount", 0); }
static int do_pivot(long a, long b, long c) { return CALL(SYS_pivot_root, "/no-such-root", "/no-such-root"); }
static int do_chroot(long a, long b, long c) { return chroot("/") ? errno : 0; }
static int do_fsopen(long a, long b, long c) { return CALL(SYS_fsopen, "tmpfs", 0); }
static int do_fsmount(long a, long b, long c) { return CALL(SYS_fsmount, -1, 0, 0); }
static int do_fspick(long a, long b, long c) { return CALL(SYS_fspick, AT_FDCWD, "/no-such-mount", 0); }
static int do_opentree(long a, long b, long c) { return CALL(SYS_open_tree, AT_FDCWD, "/", 1); }
static int do_movemount(long a, long b, long c) { return CALL(SYS_move_mount, AT_FDCWD, "/no-such", AT_FDCWD, "/no-such", 0); }

static int do_setattr(long a, long b, long c)
{
    uint64_t attr[4] = {1, 0, 0, 0};
    return CALL(SYS_mount_setattr, AT_FDCWD, "/no-such-mount", 0, attr, sizeof attr);
}

static int do_bpf(long a, long b, long c)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = 4;
    attr.value_size = 4;
    attr.max_entries = 1;
    return CALL(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr);
}

static int do_perf(long a, long b, long c)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.type = PERF_TYPE_SOFTWARE;
    attr.size = sizeof attr;
    attr.config = PERF_COUNT_SW_TASK_CLOCK;
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    return CALL(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

static int do_uring_setup(long a, long b, long c)
{
    char params[256] = {0};
    return CALL(SYS_io_uring_setup, 1, params);
}

static int do_uring_enter(long a, long b, long c) { return CALL(SYS_io_uring_enter, -1, 0, 0, 0, 0, 0); }
static int do_uring_register(long a, long b, long c) { return CALL(SYS_io_uring_register, -1, 0, 0, 0); }
static int do_uffd(long a, long b, long c) { return CALL(SYS_userfaultfd, 1); }
static int do_add_key(long a, long b, long c) { return CALL(SYS_add_key, "user", "stk-probe", "x", 1, -2); }
static int do_request_key(long a, long b, long c) { return CALL(SYS_request_key, "user", "stk-no-such-key", NULL, 0); }
static int do_keyctl(long spec, long b, long c) { return CALL(SYS_keyctl, 0, spec, 0); }
static int do_init_module(long a, long b, long c) { return CALL(SYS_init_module, NULL, 0, ""); }
static int do_finit_module(long a, long b, long c) { return CALL(SYS_finit_module, -1, "", 0); }
static int do_delete_module(long a, long b, long c) { return CALL(SYS_delete_module, "stk_no_such_module", O_NONBLOCK); }
static int do_kexec_load(long a, long b, long c) { return CALL(SYS_kexec_load, 0, 0, NULL, 0xffff); }
static int do_kexec_file(long a, long b, long c) { return CALL(SYS_kexec_file_load, -1, -1, 0, "", 0); }
static int do_fanotify(long a, long b, long c) { return CALL(SYS_fanotify_init, 0x200, O_RDONLY); }

static int do_open_by_handle(long a, long b, long c)
{
    struct { uint32_t bytes; int type; unsigned char data[64]; } handle = {8, 1, {0}};
    return CALL(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY);
}

static int do_swapon(long a, long b, long c) { return CALL(SYS_swapon, "/no-such-swap", 0); }
static int do_reboot(long a, long b, long c) { return CALL(SYS_reboot, 0, 0, 0, NULL); }
static int do_acct(long a, long b, long c) { return CALL(SYS_acct, "/no-such-file"); }
static int do_hostname(long a, long b, long c) { return CALL(SYS_sethostname, "stk", 3); }

static int do_socket(long family, long type, long protocol)
{
    return socket(family, type, protocol) < 0 ? errno : 0;
}

/* Every way to ask for a mode bit. The file is looked at afterwards: a call that said yes and
 * dropped the bit is inert, one that made it is the attack. */
static int bit_made(const char *path, long bit)
{
    struct stat info;
    if (lstat(path, &info)) return errno;
    int made = (info.st_mode & bit) != 0;
    unlink(path);
    return made ? 0 : INERT;
}

static const char *fresh(const char *path)
{
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0755);
    if (fd >= 0) close(fd);
    return path;
}

enum way { CHMOD, FCHMOD, FCHMODAT, FCHMODAT2, CREAT, OPEN, OPENAT, OPENAT2, MKNOD, MKNODAT, FDPATH, TMPFILE, MEMFD };

static int ask_existing(long way, long mode)
{
    const char *path = fresh("stk-mode");
    int fd = open(path, O_RDWR), failed = 0;
    char name[64];
    if (fd < 0) return errno;
    switch (way) {
    case CHMOD: failed = CALL(SYS_chmod, path, mode); break;
    case FCHMOD: failed = CALL(SYS_fchmod, fd, mode); break;
    case FCHMODAT: failed = CALL(SYS_fchmodat, AT_FDCWD, path, mode); break;
    case FCHMODAT2: failed = CALL(NR_FCHMODAT2, AT_FDCWD, path, mode, 0); break;
    default: snprintf(name, sizeof name, "/proc/self/fd/%d", fd); failed = CALL(SYS_chmod, name, mode);
    }
    if (failed) unlink(path);
    return failed ? failed : bit_made(path, mode & 06000);
}

static int ask_new(long way, long mode)
{
    const char *path = "stk-new";
    uint64_t how[3] = {O_CREAT | O_WRONLY, mode, 0};
    int failed = 0;
    unlink(path);
    umask(0);
    switch (way) {
    case CREAT: failed = CALL(SYS_creat, path, mode); break;
    case OPEN: failed = CALL(SYS_open, path, O_CREAT | O_WRONLY, mode); break;
    case OPENAT: failed = CALL(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, mode); break;
    case OPENAT2: failed = CALL(SYS_openat2, AT_FDCWD, path, how, sizeof how); break;
    case MKNOD: failed = CALL(SYS_mknod, path, S_IFREG | mode, 0); break;
    default: failed = CALL(SYS_mknodat, AT_FDCWD, path, S_IFREG | mode, 0);
    }
    return failed ? failed : bit_made(path, mode & 06000);
}

static int ask_nameless(long way, long mode)
{
    struct stat info;
    int fd = way == TMPFILE ? open(".", O_TMPFILE | O_RDWR, mode) : memfd_create("stk", 0);
    if (fd < 0) return errno;
    if (way == MEMFD && fchmod(fd, mode)) return errno;
    if (fstat(fd, &info)) return errno;
    return info.st_mode & mode & 06000 ? 0 : INERT;
}

static int do_mode(long way, long mode, long c)
{
    if (way == TMPFILE || way == MEMFD) return ask_nameless(way, mode);
    return way >= CREAT && way <= MKNODAT ? ask_new(way, mode) : ask_existing(way, mode);
}

static int do_mkdir_mode(long mode, long b, long c)
{
    rmdir("stk-dir");
    if (mkdir("stk-dir", 0755) || CALL(SYS_chmod, "stk-dir", mode)) return errno;
    struct stat info;
    int failed = stat("stk-dir", &info) ? errno : 0;
    rmdir("stk-dir");
    return failed ? failed : (info.st_mode & mode & 06000 ? 0 : INERT);
}

static int do_device(long a, long b, long c)
{
    int failed = mknod("stk-device", S_IFCHR | 0600, (1 << 8) | 3) ? errno : 0;
    if (!failed) {
        int fd = open("stk-device", O_RDONLY);
        failed = fd < 0 ? errno : 0;
        unlink("stk-device");
    }
    return failed;
}

static int do_setuid_zero(long a, long b, long c) { return setresuid(0, 0, 0) ? errno : 0; }

static int do_capset(long a, long b, long c)
{
    uint32_t header[2] = {0x20080522, 0}, data[6] = {1u << 21, 1u << 21, 0, 0, 0, 0};
    return CALL(SYS_capset, header, data);
}

#if defined(__x86_64__)
static int do_x32(long a, long b, long c) { return CALL(0x40000000 | SYS_getpid); }

static int do_int80(long a, long b, long c)
{
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
    int value = (int)answer;
    return value < 0 ? -value : 0;
}
#endif

/* Allowed twins. */
static int do_trace(long a, long b, long c)
{
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(1);
        raise(SIGSTOP);
        _exit(0);
    }
    int state = 0;
    waitpid(child, &state, 0);
    if (!WIFSTOPPED(state)) return EPERM;
    int failed = ptrace(PTRACE_DETACH, child, 0, 0) ? errno : 0;
    waitpid(child, &state, 0);
    return failed;
}

static int do_seccomp(long a, long b, long c)
{
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
    return CALL(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static int do_landlock(long a, long b, long c)
{
    uint64_t attr[1] = {1};
    return CALL(SYS_landlock_create_ruleset, attr, sizeof attr, 0);
}

static int do_hard_link(long a, long b, long c)
{
    fresh("stk-link-a");
    unlink("stk-link-b");
    int failed = link("stk-link-a", "stk-link-b") ? errno : 0;
    unlink("stk-link-a");
    unlink("stk-link-b");
    return failed;
}

#define NS(name, flag) {"unshare_" name, do_unshare, flag}, {"clone_" name, do_clone, flag}, {"clone3_" name, do_clone3, flag}
#define MODE(name, way) {"setuid_" name, do_mode, way, 04755}, {"setgid_" name, do_mode, way, 02755}, {"mode_" name, do_mode, way, 0755}

static const struct probe PROBES[] = {
    NS("user", CLONE_NEWUSER), NS("mount", CLONE_NEWNS), NS("pid", CLONE_NEWPID), NS("net", CLONE_NEWNET),
    NS("ipc", CLONE_NEWIPC), NS("uts", CLONE_NEWUTS), NS("cgroup", CLONE_NEWCGROUP),
    {"unshare_time", do_unshare, CLONE_NEWTIME}, {"setns", do_setns},
    {"mount_tmpfs", do_mount}, {"mount_bind", do_bindself}, {"mount_remount", do_remount}, {"umount2", do_umount},
    {"pivot_root", do_pivot}, {"chroot", do_chroot}, {"fsopen", do_fsopen}, {"fsmount", do_fsmount}, {"fspick", do_fspick},
    {"open_tree", do_opentree}, {"move_mount", do_movemount}, {"mount_setattr", do_setattr},
    {"bpf", do_bpf}, {"perf_event_open", do_perf}, {"io_uring_setup", do_uring_setup}, {"io_uring_enter", do_uring_enter},
    {"io_uring_register", do_uring_register}, {"userfaultfd", do_uffd}, {"add_key", do_add_key},
    {"request_key", do_request_key}, {"keyctl_session", do_keyctl, -3}, {"keyctl_user", do_keyctl, -4},
    {"init_module", do_init_module}, {"finit_module", do_finit_module}, {"delete_module", do_delete_module},
    {"kexec_load", do_kexec_load}, {"kexec_file_load", do_kexec_file}, {"fanotify_init", do_fanotify},
    {"open_by_handle_at", do_open_by_handle}, {"swapon", do_swapon}, {"reboot", do_reboot}, {"acct", do_acct},
    {"sethostname", do_hostname}, {"device_node", do_device}, {"setuid_zero", do_setuid_zero}, {"capset", do_capset},
    {"socket_packet", do_socket, AF_PACKET, SOCK_DGRAM, 0}, {"socket_vsock", do_socket, 40, SOCK_STREAM, 0},
    {"socket_alg", do_socket, 38, SOCK_SEQPACKET, 0}, {"socket_key", do_socket, 15, SOCK_RAW, 2},
    {"socket_xdp", do_socket, 44, SOCK_RAW, 0}, {"socket_can", do_socket, 29, SOCK_RAW, 1},
    {"socket_bluetooth", do_socket, 31, SOCK_RAW, 1}, {"socket_raw", do_socket, AF_INET, SOCK_RAW, 1},
    {"netlink_generic", do_socket, AF_NETLINK, SOCK_RAW, 16}, {"netlink_audit", do_socket, AF_NETLINK, SOCK_RAW, 9},
    {"netlink_uevent", do_socket, AF_NETLINK, SOCK_RAW, 15}, {"netlink_diag", do_socket, AF_NETLINK, SOCK_RAW, 4},
    {"netlink_netfilter", do_socket, AF_NETLINK, SOCK_RAW, 12}, {"netlink_xfrm", do_socket, AF_NETLINK, SOCK_RAW, 6},
    {"netlink_connector", do_socket, AF_NETLINK, SOCK_DGRAM, 11}, {"netlink_crypto", do_socket, AF_NETLINK, SOCK_RAW, 21},
    MODE("fchmod", FCHMOD), MODE("fchmodat", FCHMODAT), MODE("fchmodat2", FCHMODAT2), MODE("openat", OPENAT),
    MODE("openat2", OPENAT2), MODE("mknodat", MKNODAT), MODE("fdpath", FDPATH), MODE("tmpfile", TMPFILE), MODE("memfd", MEMFD),
#if defined(__x86_64__)
    MODE("chmod", CHMOD), MODE("creat", CREAT), MODE("open", OPEN), MODE("mknod", MKNOD),
    {"x32_getpid", do_x32}, {"int80_getpid", do_int80},
#endif
    {"ok_netlink_route", do_socket, AF_NETLINK, SOCK_RAW, 0}, {"ok_unix", do_socket, AF_UNIX, SOCK_STREAM, 0},
    {"ok_inet", do_socket, AF_INET, SOCK_STREAM, 0}, {"ok_inet6", do_socket, AF_INET6, SOCK_STREAM, 0},
    {"ok_clone_plain", do_clone, 0}, {"ok_ptrace_child", do_trace}, {"ok_seccomp", do_seccomp},
    {"ok_landlock", do_landlock}, {"ok_hard_link", do_hard_link}, {"ok_sticky_dir", do_mkdir_mode, 01777},
    {"dir_setgid", do_mkdir_mode, 02755}, {"dir_setuid", do_mkdir_mode, 04755},
};

static void become(const char *how)
{
    int flags = 0;
    if (!strcmp(how, "private")) flags = CLONE_NEWNS | CLONE_NEWUTS;
    if (!strcmp(how, "user")) flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET;
    if (flags && unshare(flags)) _exit(200);
    if (flags) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static void report(const struct probe *p, const char *how)
{
    int channel[2], answer = -1, state = 0;
    if (pipe(channel)) exit(2);
    pid_t child = fork();
    if (child == 0) {
        become(how);
        alarm(10);
        answer = p->run(p->a, p->b, p->c);
        if (write(channel[1], &answer, sizeof answer) < 0) _exit(3);
        _exit(0);
    }
    close(channel[1]);
    if (read(channel[0], &answer, sizeof answer) != sizeof answer) answer = -1;
    close(channel[0]);
    waitpid(child, &state, 0);
    const char *text = answer == 0 ? "ok" : answer == INERT ? "inert" : answer < 0 ? "SIGNAL" : strerrorname_np(answer);
    printf("%s\"%s\": \"%s\"", p == PROBES ? "{" : ", ", p->name, text ? text : "UNKNOWN");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    for (size_t n = 0; n < sizeof PROBES / sizeof *PROBES; n++)
        report(&PROBES[n], argc > 1 ? argv[1] : "plain");
    puts("}");
    return 0;
}
