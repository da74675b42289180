// A FUSE file system that mounts and then never answers: what a dead network mount looks like.
// Usage: stuckfs DIRECTORY. Says "ready" when it is mounted, and ends when standard input does.
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static char buffer[1 << 17];

// The kernel asks for this once; every later request waits for ever.
static int greet(int fd) {
    if (read(fd, buffer, sizeof buffer) < (ssize_t)sizeof(struct fuse_in_header)) return -1;
    struct fuse_in_header *in = (void *)buffer;
    struct {
        struct fuse_out_header head;
        struct fuse_init_out body;
    } out;
    memset(&out, 0, sizeof out);
    out.head.len = sizeof out;
    out.head.unique = in->unique;
    out.body.major = FUSE_KERNEL_VERSION;
    out.body.minor = FUSE_KERNEL_MINOR_VERSION;
    out.body.max_write = 4096;
    return write(fd, &out, sizeof out) == (ssize_t)sizeof out ? 0 : -1;
}

int main(int argc, char **argv) {
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
    if (argc != 2 || fd < 0 || mount("stuckfs", argv[1], "fuse.stuckfs", MS_NOSUID | MS_NODEV, options) < 0) {
        perror("stuckfs: mount");
        return 1;
    }
    if (greet(fd) < 0) {
        perror("stuckfs: init");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    // No request is even read: who waits for one that was can no longer be killed.
    while (read(0, buffer, sizeof buffer) > 0) continue;
    return 0;
}
