/* Lets the program it starts see a kernel with an older Landlock: the question for the version is
 * answered with the given number, everything else goes to the kernel (as ENOSYS for 0).
 * Usage: old_landlock ABI -- PROGRAM ARG... */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VERSION 1 /* LANDLOCK_CREATE_RULESET_VERSION */

static struct seccomp_notif asked;
static struct seccomp_notif_resp answer;

/* Lives as long as the program, and holds no descriptor of the caller: a pipe would never end. */
static void serve(int listener, int abi)
{
    dup2(listener, 0);
    syscall(SYS_close_range, 1, ~0u, 0);
    for (;;) {
        memset(&asked, 0, sizeof asked);
        if (ioctl(0, SECCOMP_IOCTL_NOTIF_RECV, &asked)) continue;
        memset(&answer, 0, sizeof answer);
        answer.id = asked.id;
        if (!abi)
            answer.error = -ENOSYS;
        else if (asked.data.args[2] & VERSION)
            answer.val = abi;
        else
            answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(0, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[2], "--")) return 96;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    pid_t parent = getpid();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 95;
    int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0) return 94;
    pid_t pid = fork();
    if (pid < 0) return 92;
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) return 91;
        serve(listener, atoi(argv[1]));
    }
    close(listener);
    execv(argv[3], argv + 3);
    return 93;
}
