"""Every public error and every stable code.

Owns: the exception types, the table ``CODES`` and the one-line form of an error.
Fails closed: an error never carries an environment value, and a code that the table
does not know still gives exit status 125, never success.
Read next: ``docs/errors.md`` (made from ``CODES``), ``outcomes.py``, ``stockade.decision``.
"""

from __future__ import annotations

import errno
import os

from stockade.frozen import NamedTuple
from stockade.light import Iterable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from stockade.outcomes import CommandFailed as CommandFailed
    from stockade.outcomes import TimedOut as TimedOut

EXIT_REFUSED = 125
EXIT_TIMED_OUT = 124
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class Code(NamedTuple):
    """What one stable code means, what helps, and the exit status of ``stockade run``."""

    meaning: str
    hint: str
    exit: int = EXIT_REFUSED


CODES: dict[str, Code] = {
    # the request
    "usage": Code("the command line cannot be understood", "see stockade --help"),
    "internal": Code("a fault of Stockade itself that nobody foresaw",
                     "report it with what STOCKADE_LOG=debug prints"),
    "unknown_command": Code("no command of that name", "see stockade --help"),
    "unknown_option": Code("no option of that name", "see stockade run --help"),
    "unknown_tier": Code("no tier of that name", "use off, standard, guarded, strict or auto"),
    "unknown_caller": Code("no caller class of that name", "see docs/tiers.md for the classes"),
    "caller_unproven": Code("class first_party is proven by an installed distribution, never claimed",
                            "name another class, or see docs/decision.md for what is compared"),
    "first_party_unknown": Code("no distribution of that name is installed, or more than one is",
                                "register the name of an installed distribution, once, at the start"),
    "unknown_profile": Code("no profile of that name", "stockade profile list shows them"),
    "unknown_promise": Code("no tier or promise of that name", "see docs/tiers.md for the promises"),
    "unknown_grant": Code("no grant of that name", "see docs/tiers.md for the named grants"),
    "unknown_list_key": Code("a reviewed list or table has no key of that name", "use a key of the list"),
    "unknown_run": Code("no box with that run id", "stockade ps shows the boxes that live"),
    "unknown_plan": Code("no plan with that digest or pin", "stockade plan list shows them"),
    "argv_invalid": Code("the command is not a list of non-empty strings without NUL",
                         "give a list such as [\"sh\", \"-c\", \"...\"]"),
    "path_invalid": Code("a path cannot be used", "give a path without NUL whose name is UTF-8"),
    "value_invalid": Code("a value has the wrong type, unit or range", "give what the message expects"),
    "env_invalid": Code("an environment name or value cannot be passed",
                        "check the names and values that were set for the command"),
    "option_refused": Code("an option of subprocess that would weaken the box", "see the reason in the message"),
    "net_unsupported": Code("this version cannot restrict the network to a list of hosts",
                            "use none or host"),
    "publish_unsupported": Code("this version cannot publish a port of a box", "use --net host"),
    "write_root_refused": Code("home, / or a directory above the state home was named as a write root",
                               "name a directory below the home, such as the project"),
    "hard_link": Code("a protected file has another name inside a write root",
                      "remove the second link, or copy the file"),
    "grant_unsupported": Code("this version cannot give the grant", "drop the grant"),
    "grant_voids_tier": Code("a grant hands over something outside the box and gives promises away",
                             "drop the grant, or accept the promises it waives"),
    "socket_grant_impossible": Code("a socket was granted, and without namespaces no box can have one",
                                    "drop the grant; stockade doctor says what keeps namespaces away"),
    "own_install": Code("a write root holds the installed package or the interpreter that runs it",
                        "install Stockade with uv tool or pipx, or name a smaller write root"),
    "own_state": Code("a grant reaches into the state home, which no box may read", "drop the grant"),
    "denied": Code("a rule of the box does not allow this access", "stockade why PATH names the grant"),
    "access_unknown": Code("whether a box may do this hangs on what only a running box has",
                           "try it in the box"),
    # the decision
    "no_backend": Code("nothing on this host keeps the promises of the tier", "stockade doctor names the remedy"),
    "foreign_sandbox": Code("another sandbox around this process prevents a box",
                            "start it outside, or allow user namespaces there"),
    "transient": Code("the host was short of something just now", "try again"),
    "nested_unsupported": Code("inside a box: a launch line, or prove, which asks the host",
                               "start the command from outside the box, or with run or Popen, which work inside"),
    "tier_unreachable": Code("the box around this process does not reach the tier, and none can be made in it",
                             "start the command from outside the box, ask for no more than the box has, or accept the "
                             "missing promises by name"),
    "grant_unreachable": Code("the request needs what the box around this process does not have",
                              "grant it to the outer box, or start the command from outside"),
    "decision_unsupported": Code("this version cannot carry out what was decided",
                                 "`stockade explain` says which row of the table it was, and why no better one"),
    "policy_denied": Code("policy forbids a part of the request", "the message names the policy file"),
    # files
    "policy_invalid": Code("a policy file is invalid, unreadable or not owned by root",
                           "repair the file; until then every request is refused"),
    "config_invalid": Code("a configuration file is invalid or unreadable", "repair the file"),
    "profile_invalid": Code("a profile file is invalid or unreadable", "repair the file"),
    "rules_invalid": Code("a reviewed list of the package is invalid", "reinstall the package"),
    "state_home_invalid": Code("the state home cannot be used safely", "set STOCKADE_HOME to a directory of yours"),
    "audit_unavailable": Code("policy requires a record and it cannot be written",
                              "make the state home writable"),
    "identity_invalid": Code("the caller's user or home cannot be found", "set HOME to an absolute path"),
    # the launch
    "launcher_missing": Code("the launcher is not installed beside the package",
                             "install a wheel made for Linux on x86_64 or aarch64; in a checkout: make build"),
    "launch_failed": Code("the launcher ended without saying why", "stockade doctor"),
    "trace_invalid": Code("the tracer's lines cannot be read", "reinstall; the versions may differ"),
    "profile_unsaved": Code("a learned profile could not be written, or its file changed meanwhile",
                            "check the directory's permissions, or learn again"),
    "receipt_invalid": Code("the launcher's report cannot be read", "reinstall; the versions may differ"),
    "timed_out": Code("the wall-clock limit ended the box", "raise the limit: --timeout, timeout=", EXIT_TIMED_OUT),
    "command_failed": Code("the command ended with a status other than 0", "its own output says why", 1),
    "output_failed": Code("what the command prints cannot be written",
                          "make room where standard output goes, or keep its reader alive"),
    "prove_failed": Code("the attacks could not be made, so nothing is shown",
                         "try again when the machine has less to do; stockade doctor examines the host"),
    "prove_unsupported": Code("this version cannot prove that", "see stockade prove --help"),
    "peer_missing": Code("the sandbox to compare with is not installed", "install it, or leave --against out"),
    "wrap_impossible": Code("this request cannot become a launch line that is started later",
                            "drop the descriptors and values that only this process has"),
    "plan_missing": Code("the plan is not in the store",
                         "the plan was collected or never stored; ask for a new launch line, or pin it"),
    "plan_unsealed": Code("the plan descriptor can still be written",
                          "a plan descriptor is a memfd with all seals; let stockade hand it over"),
    "plan_owner": Code("the plan file belongs to somebody else or others can write it",
                       "the plan store must belong to the caller and be writable by nobody else"),
    "plan_digest": Code("the plan file does not have the digest it is named by",
                        "the stored plan was changed; remove it and ask for a new launch line"),
    "plan_invalid": Code("the plan has an unknown, missing or wrong field",
                         "plan and launcher are of different versions; reinstall stockade"),
    "bind_invalid": Code("a --bind parameter is missing, unknown or not canonical",
                         "give each parameter of the plan as --bind NAME=/absolute/path"),
    "userns_denied": Code("the kernel refused a user namespace",
                          "user namespaces are not allowed here; `stockade doctor` names the setting"),
    "map_denied": Code("the kernel refused the id map", "the id map was refused; `stockade doctor` names the cause"),
    "namespace_denied": Code("the kernel refused a namespace",
                             "a namespace was refused; `stockade doctor` names the setting"),
    "source_missing": Code("a path to bind does not exist",
                           "a granted path does not exist; create it or drop the grant"),
    "source_type": Code("a path to bind has another type than expected",
                        "a granted path is of another type now; ask for a new plan"),
    "source_symlink": Code("a path to bind became a symbolic link",
                           "a component of a granted path became a symbolic link; ask for a new plan"),
    "source_denied": Code("a path to bind cannot be opened", "a granted path cannot be opened; check its permissions"),
    "mount_denied": Code("the kernel refused a mount",
                         "a mount was refused; `stockade doctor` shows what this host allows"),
    "mount_point_missing": Code(
        "there is no place to mount on",
        "nothing is ever created in your tree to mount on; create the directory or drop the grant"),
    "overlay_denied": Code("the kernel refused an overlay",
                           "overlay mounts are not allowed here; `stockade doctor` names the cause"),
    "guard_denied": Code("a guarded path could not be pinned",
                         "a guarded path could not be protected; make it readable, or try again if it was being "
                         "replaced"),
    "persistence_changed": Code("places that run code later changed, and the run was to fail if they did",
                                "stockade show RUN names them"),
    "persistence_unwatched": Code("tier off compares nothing before and after a run, so nothing follows from it",
                                  "ask for a tier with a box, or leave on_persistence out"),
    "copyback_unsupported": Code("a file can be copied back only from a private home, which strict has",
                                 "ask for tier strict, or move the file into a granted directory with mode env"),
    "copyback_refused": Code("a profile names a file to copy back that no box may write",
                             "leave it out of the profile's state"),
    "journal_failed": Code("what the write roots hold could not be noted before the start",
                           "check space and permissions of the state home"),
    "guard_lost": Code("a guard inside a write root disappeared and the box was ended",
                       "the host changed the guarded file; start again"),
    "proc_denied": Code("the kernel refused a fresh /proc",
                        "a fresh /proc was refused; in a container /proc may be covered by the host"),
    "dev_denied": Code("the private /dev could not be made",
                       "the private /dev could not be made; `stockade doctor` names the cause"),
    "pivot_denied": Code("the new root could not be entered",
                         "the new root could not be entered; `stockade doctor` names the cause"),
    "fork_failed": Code("the command's process could not be created",
                        "no process could be made; check the process limit"),
    "fds_denied": Code("descriptors could not be closed or kept",
                       "hand over files, pipes or sockets; grant a directory by its path"),
    "nnp_denied": Code("no_new_privs could not be set", "no_new_privs was refused"),
    "keyring_denied": Code("a fresh session keyring could not be made",
                           "no fresh session keyring could be made; check the key quota"),
    "caps_denied": Code("capabilities could not be dropped", "capabilities could not be dropped"),
    "landlock_unavailable": Code("the kernel has less Landlock than the plan needs",
                                 "the kernel has less Landlock than the plan needs; ask for a new plan on this host"),
    "landlock_denied": Code("the Landlock ruleset was refused", "a Landlock rule was refused"),
    "rlimit_denied": Code("a limit could not be set", "a limit is above the caller's own hard limit; ask for less"),
    "trace_denied": Code("the command cannot be watched on this host",
                         "this host lets nobody trace processes (kernel.yama.ptrace_scope); run without watching"),
    "seccomp_denied": Code("the seccomp filter was refused", "the system call filter was refused"),
    "chdir_denied": Code("the working directory cannot be entered in the box",
                         "the working directory does not exist in the box; grant it or name another with --cwd"),
    "exec_failed": Code(
        "the command cannot be executed",
        "check that the file is executable and that its interpreter exists in the box", EXIT_NOT_EXECUTABLE),
    "not_found": Code(
        "the command was not found in the box",
        "the command is not on the PATH of the box; `stockade why` shows what is granted", EXIT_NOT_FOUND),
    "interpreter_changed": Code("the box resolves the command to another file than the host",
                                "the box finds another file under this name; name the command by its full path"),
    "promise_not_kept": Code("a promise of the tier was not kept and nothing accepted that",
                             "ask for a lower tier, or accept the missing promises by name"),
    "report_failed": Code("the receipt could not be delivered",
                          "the reader of the receipt went away; keep the report descriptor open"),
    "spool_failed": Code("the record could not be written",
                         "the audit record could not be written; check space and permissions of the state home"),
    "mount_stuck": Code("a file system that the request needs does not answer",
                        "mount it again or unmount it (umount -l), or leave out what lies there"),
    "start_timed_out": Code("the command did not start in time",
                            "look for a file system that hangs, or try again when the machine has less to do"),
    "nest_invalid": Code("a request from inside a box is not one of this version",
                         "request and launcher are of different versions; reinstall stockade"),
    "nest_busy": Code("as many boxes live inside this one as may",
                      "end a box inside this one, or wait for one to end"),
    "nest_gone": Code("the supervisor of the box around did not answer",
                      "the box around has ended, or its supervisor could not answer"),
    "caller_gone": Code("the calling process ended", "the program that asked for the box ended before it started"),
    "resource": Code("the kernel was out of memory, descriptors or space",
                     "the machine is short of memory, descriptors or space; try again"),
}

TRANSIENT_CODES = frozenset({"transient", "resource", "mount_stuck", "start_timed_out", "nest_busy"})


def _one_line(text: str) -> str:
    """Escape control characters: a file name must not write a second line into a log."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii")
                   for c in text)


class Error(Exception):
    """Base of all errors of this package.

    Args: code: a key of ``CODES``; message: ``what failed on which object: got X, expected Y``;
    hint: what the reader can do (default: the code's own hint).
    """

    _fields: ClassVar[tuple[str, ...]] = ("code", "message", "hint")

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        self.code = code
        self.message = _one_line(message)
        known = CODES.get(code)
        self.hint = _one_line(hint) if hint is not None else (known.hint if known else "")
        Exception.__init__(self, code, message)

    @property
    def exit_status(self) -> int:
        """Exit status of ``stockade run`` for this error."""
        known = CODES.get(self.code)
        return known.exit if known else EXIT_REFUSED

    def __str__(self) -> str:
        tail = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.code}: {self.message}{tail}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data for ``--json`` output."""
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def __reduce__(self) -> tuple[Any, ...]:
        # The default of exceptions calls the class with ``args`` and loses keyword state,
        # which breaks the error on its way out of a worker process.
        return _rebuild, (type(self), {name: getattr(self, name) for name in self._fields})


def _rebuild(kind: type[Error], fields: dict[str, Any]) -> Error:
    return kind(**fields)


class ConfigError(Error):
    """A request, profile, configuration or policy file is wrong; nothing was started.

    Args: path, line: the file and the line, where there is one (the message names them, too).
    """

    _fields = ("code", "message", "hint", "path", "line")

    def __init__(self, code: str, message: str, *, hint: str | None = None, path: str | None = None,
                 line: int | None = None) -> None:
        super().__init__(code, message, hint=hint)
        self.path = path
        self.line = line


class Refused(Error):
    """The request is understood and will not be run as asked.

    Args: reasons: one line each, in the order of the decision; missing: promise ids that this
    host does not keep; remedy: what changes the answer on this host; transient: worth a retry;
    cause: what the launcher was refused (its code, step, object, errno), where it was one.
    """

    _fields = ("code", "message", "hint", "reasons", "missing", "remedy", "transient", "cause")

    def __init__(self, code: str, message: str, *, hint: str | None = None,
                 reasons: Iterable[str] = (), missing: Iterable[str] = (),
                 remedy: str | None = None, transient: bool | None = None,
                 cause: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, message, hint=remedy if hint is None else hint)
        self.cause = dict(cause) if cause else None
        self.reasons = tuple(reasons)
        self.missing = tuple(missing)
        self.remedy = remedy if remedy is not None else self.hint
        self.transient = code in TRANSIENT_CODES if transient is None else transient

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data for ``--json`` output."""
        return {**super().to_json(), "reasons": list(self.reasons), "missing": list(self.missing),
                "remedy": self.remedy, "transient": self.transient, "cause": self.cause}


class LaunchFailed(Error):
    """The launcher could not be started, or ended without a record.

    Args: record: the launcher's last record, if there was one; returncode: its exit status.
    """

    _fields = ("code", "message", "hint", "record", "returncode")

    def __init__(self, code: str, message: str, *, hint: str | None = None,
                 record: Mapping[str, Any] | None = None, returncode: int | None = None) -> None:
        super().__init__(code, message, hint=hint)
        self.record = dict(record) if record is not None else None
        self.returncode = returncode


class AuditUnavailable(Error):
    """A record that policy requires could not be written; nothing was started."""


class Denied(Error, PermissionError):
    """A rule of the box denies one access. ``rule`` says which, ``grant`` what would allow it."""

    _fields = ("code", "message", "hint", "rule", "grant", "path")

    def __init__(self, code: str, message: str, *, hint: str | None = None,
                 rule: str, grant: str | None = None, path: str | None = None) -> None:
        Error.__init__(self, code, message, hint=hint)
        OSError.__init__(self, errno.EACCES, message)
        self.filename = path
        self.path = path
        self.rule = rule
        self.grant = grant

    __str__ = Error.__str__


class DowngradeWarning(UserWarning):
    """A request ran with fewer promises than asked, because somebody said it may."""


# Which limit of the caller an error number speaks of, and the shell's letter for it.
# Source: getrlimit(2), "ERRORS" of fork(2), open(2), write(2), mmap(2).
_LIMITS = {errno.EFBIG: ("RLIMIT_FSIZE", "f"), errno.EMFILE: ("RLIMIT_NOFILE", "n"),
           errno.EAGAIN: ("RLIMIT_NPROC", "u"), errno.ENOMEM: ("RLIMIT_AS", "v")}
_SHORTAGES = frozenset({*_LIMITS, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})


def shortage(err: OSError, what: str) -> Refused | None:
    """Return the transient refusal for a shortage in front of ``what``; None for any other error.

    It is in this module because it is loaded: without descriptors nothing can be imported.
    """
    if err.errno not in _SHORTAGES:
        return None
    limit, hint = limit_of(err.errno)
    name = errno.errorcode[err.errno]
    return Refused("resource", f"{what}: the kernel was short of something ({name}{limit and f'; {limit}'})", hint=hint)


def limit_of(number: int) -> tuple[str, str | None]:
    """Return ``RLIMIT_X is N`` and a hint for an error number; nothing where no limit is set."""
    name, letter = _LIMITS.get(number, ("", ""))
    value = _soft_limit(name)
    if value is None:
        return "", None
    return f"{name} is {value}", f"raise the limit (ulimit -{letter}), or try again with less at work"


def _soft_limit(name: str) -> int | None:
    try:
        if name == "RLIMIT_NOFILE":
            value = os.sysconf("SC_OPEN_MAX")  # needs no descriptor, as the import below does
        else:
            import resource

            value = resource.getrlimit(getattr(resource, name))[0]
    except (AttributeError, ImportError, OSError, ValueError):
        return None
    return value if value >= 0 else None  # -1 is RLIM_INFINITY


# For E2BIG. Source: execve(2), "Limits on size of arguments and environment".
TOO_LONG = ("give fewer or shorter arguments, through a file or standard input: one may have 131071 bytes, and all "
            "with the environment a quarter of the stack limit (ulimit -s)")


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one was probably meant to be.

    Dashes in front do not count: every option has them, and they would make any two alike.
    """
    import difflib  # only errors need it; it costs start-up time

    known = {item.lstrip("-"): item for item in sorted(set(names))}
    found = difflib.get_close_matches(name.lower().lstrip("-"), known, n=1, cutoff=0.6)
    return known[found[0]] if found else None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint that names the known name closest to ``name``, or the known ones."""
    known = sorted(set(names))
    close = closest(name, known)
    if close is not None:
        return f"did you mean {close!r}?"
    return "known: " + ", ".join(known[:40]) if known else "none is known"


def __getattr__(name: str) -> Any:
    """Load the errors that are also errors of ``subprocess`` with it, on first use (PEP 562)."""
    if name not in ("TimedOut", "CommandFailed"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stockade import outcomes

    return getattr(outcomes, name)
