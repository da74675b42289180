/* Starts a program and ends by SIGKILL at once (or after it closed its standard input), with a
 * chosen oddity of the caller: "ignchld" ignores SIGCHLD, "thread" starts it from a thread that
 * exits, "die" dies right after the start.
 * Usage: orphan ignchld|thread|die PROGRAM ARG...   Prints the program's pid first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char **program;
static pid_t child;

static void *start(void *unused)
{
    child = fork();
    if (child == 0) {
        execv(program[0], program);
        _exit(127);
    }
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int status = 0;
    if (argc < 3) return 96;
    program = argv + 2;
    if (!strcmp(argv[1], "ignchld")) signal(SIGCHLD, SIG_IGN);
    if (pthread_create(&thread, NULL, start, NULL)) return 95;
    pthread_join(thread, NULL);
    dprintf(2, "pid %d\n", child);
    if (!strcmp(argv[1], "die")) raise(SIGKILL);
    if (waitpid(child, &status, 0) < 0) return 0;   /* SIGCHLD ignored: ECHILD once it is gone */
    return WIFEXITED(status) ? WEXITSTATUS(status) : 94;
}
