/* Tries to type into the terminal it shares with the caller: TIOCSTI, TIOCLINUX (paste), both
 * also with bits set above the 32 that the kernel reads. One JSON object on standard output. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

static const char *ask(int fd, unsigned long request, void *argument)
{
    long answer = syscall(SYS_ioctl, fd, request, argument);
    return answer < 0 ? strerrorname_np(errno) : "ok";
}

int main(void)
{
    char letter = 'X', paste[2] = {3, 0};
    struct winsize size;
    struct termios mode;
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY);
    int fd = terminal >= 0 ? terminal : 0;
    printf("{\"sti\": \"%s\", ", ask(fd, TIOCSTI, &letter));
    printf("\"sti_high\": \"%s\", ", ask(fd, TIOCSTI | 0x100000000UL, &letter));
    printf("\"sti_top\": \"%s\", ", ask(fd, TIOCSTI | 0xdead0000UL << 32, &letter));
    printf("\"sti_stdin\": \"%s\", ", ask(0, TIOCSTI, &letter));
    printf("\"linux\": \"%s\", ", ask(fd, TIOCLINUX, paste));
    printf("\"linux_high\": \"%s\", ", ask(fd, TIOCLINUX | 0x100000000UL, paste));
    printf("\"ok_size\": \"%s\", ", ask(0, TIOCGWINSZ, &size));
    printf("\"ok_mode\": \"%s\", ", tcgetattr(0, &mode) ? strerrorname_np(errno) : "ok");
    printf("\"ok_set\": \"%s\"}\n", tcsetattr(0, TCSANOW, &mode) ? strerrorname_np(errno) : "ok");
    return 0;
}
