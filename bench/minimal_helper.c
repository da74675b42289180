/*
 * The floor that the launcher is measured against: the smallest static helper
 * that makes user, mount, pid and ipc namespaces (and a net one with -n), hides
 * ten paths with empty mounts and execs. No root change, no Landlock, no
 * seccomp, no supervisor: it is not a sandbox, only a yardstick.
 *
 *   minimal_helper [-n] HIDDEN_DIRECTORY... -- COMMAND ARG...
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "minimal_helper: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        fail(path);
    close(fd);
}

static void map_ids(uid_t uid, gid_t gid) {
    char text[64];
    write_file("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "%u %u 1", uid, uid);
    write_file("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "%u %u 1", gid, gid);
    write_file("/proc/self/gid_map", text);
}

static void hide(char **paths, char **end) {
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("private");
    for (; paths < end; paths++)
        if (mount("tmpfs", *paths, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=0755"))
            fail(*paths);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        fail("/proc");
}

int main(int argc, char **argv) {
    int first = 1, flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | SIGCHLD;
    if (argc > 1 && !strcmp(argv[1], "-n")) {
        flags |= CLONE_NEWNET;
        first = 2;
    }
    char **hidden = argv + first, **end = hidden;
    while (*end && strcmp(*end, "--"))
        end++;
    if (!*end || !end[1]) {
        fprintf(stderr, "minimal_helper: usage: minimal_helper [-n] DIR... -- COMMAND ARG...\n");
        return 125;
    }
    uid_t uid = getuid();
    gid_t gid = getgid();
    pid_t child = (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    if (child < 0)
        fail("clone");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        map_ids(uid, gid);
        hide(hidden, end);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        execv(end[1], end + 1);
        fail(end[1]);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
