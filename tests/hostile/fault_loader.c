/* Makes chosen system calls fail for the program it starts, so that every launcher step can be
 * seen to fail without a hook in the launcher. A fault is NAME:ERRNO or NAME:ERRNO:ARG:MASK:VALUE
 * (KILL for ERRNO ends the caller, HANG lets it wait for ever; the low and high word of argument ARG, masked, equal VALUE; numbers in C notation).
 * Usage: fault_loader FAULT... -- PROGRAM ARG... */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name) {#name, SYS_##name}
static const struct { const char *name; long nr; } CALLS[] = {
    CALL(clone), CALL(clone3), CALL(unshare), CALL(setns), CALL(mount), CALL(open_tree), CALL(move_mount),
    CALL(mount_setattr), CALL(fsopen), CALL(fsconfig), CALL(fsmount), CALL(pivot_root), CALL(umount2), CALL(mkdirat),
    CALL(mknodat), CALL(symlinkat), CALL(openat), CALL(openat2), CALL(close_range), CALL(prctl), CALL(keyctl), CALL(capset),
    CALL(landlock_create_ruleset), CALL(landlock_add_rule), CALL(landlock_restrict_self), CALL(setrlimit),
    CALL(prlimit64), CALL(seccomp), CALL(fchdir), CALL(chdir), CALL(execve), CALL(execveat), CALL(pipe2), CALL(write),
    CALL(socketpair), CALL(socket), CALL(bind), CALL(memfd_create), CALL(getrandom), CALL(setgroups), CALL(setresuid),
    CALL(setresgid), CALL(sethostname), CALL(fork), CALL(vfork), CALL(wait4), CALL(waitid), CALL(setpgid),
    CALL(pidfd_open), CALL(writev), CALL(ioctl), CALL(fchmod), CALL(lsetxattr), CALL(setxattr), CALL(fsetxattr), CALL(mkdir),
    CALL(mknod), CALL(symlink), CALL(open), CALL(chroot), CALL(rt_sigprocmask), CALL(poll), CALL(fcntl), CALL(ptrace),
    CALL(renameat2), CALL(unlinkat), CALL(fsync), CALL(flock),
};

static const struct { const char *name; int value; } ERRORS[] = {
    {"EPERM", EPERM}, {"EACCES", EACCES}, {"ENOSYS", ENOSYS}, {"EINVAL", EINVAL}, {"ENOMEM", ENOMEM}, {"EMFILE", EMFILE},
    {"ENOSPC", ENOSPC}, {"EAGAIN", EAGAIN}, {"EIO", EIO}, {"ENFILE", ENFILE}, {"EDQUOT", EDQUOT}, {"EBUSY", EBUSY}, {"ENODEV", ENODEV},
};

static struct sock_filter code[512];
static unsigned short length;
static int hangs;

static void emit(uint16_t op, uint8_t yes, uint8_t no, uint32_t k)
{
    if (length >= 500) exit(99);
    code[length++] = (struct sock_filter){op, yes, no, k};
}

static long number_of(const char *name)
{
    for (size_t n = 0; n < sizeof CALLS / sizeof *CALLS; n++)
        if (!strcmp(CALLS[n].name, name)) return CALLS[n].nr;
    fprintf(stderr, "fault_loader: unknown call %s\n", name);
    exit(98);
}

static uint32_t answer_of(const char *name)
{
    if (!strcmp(name, "KILL")) return SECCOMP_RET_KILL_PROCESS;
    if (!strcmp(name, "HANG")) {
        hangs = 1;
        return SECCOMP_RET_USER_NOTIF;
    }
    for (size_t n = 0; n < sizeof ERRORS / sizeof *ERRORS; n++)
        if (!strcmp(ERRORS[n].name, name)) return SECCOMP_RET_ERRNO | ERRORS[n].value;
    fprintf(stderr, "fault_loader: unknown error %s\n", name);
    exit(98);
}

static void word(int argument, int high, uint32_t mask, uint32_t value, uint8_t skip)
{
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args) + 8 * argument + 4 * high);
    emit(BPF_ALU | BPF_AND | BPF_K, 0, 0, mask);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, skip, value);
}

static void add(char *fault)
{
    char *part[5] = {0};
    int count = 0;
    for (char *p = strtok(fault, ":"); p && count < 5; p = strtok(NULL, ":")) part[count++] = p;
    if (count != 2 && count != 5) exit(97);
    emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, count == 5 ? 7 : 1, number_of(part[0]));
    if (count == 5) {
        uint64_t mask = strtoull(part[3], NULL, 0), value = strtoull(part[4], NULL, 0);
        word(atoi(part[2]), 1, mask >> 32, value >> 32, 4);
        word(atoi(part[2]), 0, mask, value, 1);
    }
    emit(BPF_RET | BPF_K, 0, 0, answer_of(part[1]));
}

/* Whoever waits for an answer waits as long as somebody could give one: as long as the program lives. */
static void hold(int listener)
{
    pid_t pid = fork();
    if (pid < 0) exit(92);
    if (pid) {
        close(listener);
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(listener, 0);
    syscall(SYS_close_range, 1, ~0u, 0);
    for (;;) pause();
}

int main(int argc, char **argv)
{
    int n = 1;
    for (; n < argc && strcmp(argv[n], "--"); n++) add(argv[n]);
    if (n + 1 >= argc) return 96;
    emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 95;
    int done = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, hangs ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0, &program);
    if (done < 0) return 94;
    if (hangs) hold(done);
    /* execve itself may be the fault: execveat with a path does the same. */
    execv(argv[n + 1], argv + n + 1);
    syscall(SYS_execveat, -100, argv[n + 1], argv + n + 1, environ, 0);
    return 93;
}
