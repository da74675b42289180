/* What any program of filter and rules pays: one system call filter of seven instructions and one
 * Landlock domain of the rights of ABI 3, then the command. No box. The cost of ordinary work under it is the
 * least that is possible where both hold something: bench/inside.py measures ours against it.
 *
 *   floor TREE COMMAND...     TREE, the home and /tmp may be written, the system read
 *
 * Source: seccomp(2), landlock(7).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALL ((1ULL << 15) - 1)
#define READ (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

static void must(const char *what, long result)
{
	if (result < 0) {
		perror(what);
		exit(125);
	}
}

static void rule(int rules, const char *path, unsigned long long rights)
{
	struct landlock_path_beneath_attr below = { rights, open(path, O_PATH | O_CLOEXEC) };
	must(path, below.parent_fd);
	must(path, syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0));
	close(below.parent_fd);
}

static void restrict_files(const char *tree)
{
	static const char *const system[] = { "/usr", "/etc", "/proc", "/home", "/var" };
	struct landlock_ruleset_attr handled = { .handled_access_fs = ALL };
	int rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0);
	must("landlock_create_ruleset", rules);
	for (size_t at = 0; at < sizeof(system) / sizeof(*system); at++)
		rule(rules, system[at], READ);
	rule(rules, "/dev", READ | LANDLOCK_ACCESS_FS_WRITE_FILE);
	rule(rules, "/tmp", ALL);
	rule(rules, getenv("HOME"), ALL);
	rule(rules, tree, ALL);
	must("landlock_restrict_self", syscall(SYS_landlock_restrict_self, rules, 0));
	close(rules);
}

static void filter_calls(void)
{
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mount, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(lines) / sizeof(*lines), lines };
	long set = SECCOMP_SET_MODE_FILTER, flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
	must("seccomp", syscall(SYS_seccomp, set, flags, &program));
}

int main(int count, char **words)
{
	if (count < 3)
		return 125;
	must("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	restrict_files(words[1]);
	filter_calls();
	execvp(words[2], words + 2);
	perror(words[2]);
	return 125;
}
