"""The one place that creates or replaces a process, with ``_box.py``, its other half.

Owns: the launcher's command line, the sealed plan, and becoming the launcher. ``Box`` (a child
that is waited for) is loaded when it is used: a command line that becomes the launcher needs
neither ``subprocess`` nor threads, which cost 3 ms. Fails closed: a plan that cannot be sealed is
not started. Read next: ``_box.py``, then ``launcher/src/main.rs``.
"""

from __future__ import annotations

import errno
import fcntl
import os

from stockade.errors import TOO_LONG, LaunchFailed, Refused, shortage
from stockade.frozen import dataclass, field
from stockade.light import Mapping, Sequence, memo

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, NoReturn

    from stockade.process._box import Box as Box
    from stockade.process._box import select_readable as select_readable
    from stockade.process.off import Journal

DEVNULL = -3  # subprocess.DEVNULL
ANSWER_S = 10.0  # for a launcher that starts no box
KILL_SIGNAL = 63  # to the supervisor: end the whole box with SIGKILL and write the end record

# Source: memfd_create(2), "File sealing": with all four nobody can change what was hashed.
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@memo(maxsize=1)
def launcher_path() -> str:
    """Return the launcher beside the package.

    Raises: LaunchFailed(launcher_missing).
    """
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "_bin", "stockade-launch")
    if not os.access(path, os.X_OK):
        raise LaunchFailed("launcher_missing", f"launcher {path!r}: got no executable file, expected one")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything the launcher is told besides the plan."""

    argv: tuple[str, ...]
    plan: bytes = field(repr=False)
    binds: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    set_env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_ms: int | None = None
    spool: str | None = None
    state_home: str | None = None
    pass_fds: tuple[int, ...] = ()
    nested: bool = False  # the supervisor of the box around is asked to build it
    tied: bool = True  # the box ends when this process does
    gated: bool = False  # the launcher waits for ``Box.release`` before it looks at the terminal
    degraded: tuple[str, ...] = ()  # what its end record cannot know
    quiet: bool = False  # the launcher does not say what was thrown away, where it has no report to put it in
    trace_fd: int | None = None  # a file of the caller's that takes the names which the command uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """A command without a box of its own (D1, D3, D4, D7, D11), with its filtered environment and its records."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(repr=False)
    cwd: str
    pass_fds: tuple[int, ...] = ()
    journal: Journal


def command_line(launch: Launch, *, source: Sequence[str], extra: Sequence[str] = ()) -> list[str]:
    """Return the launcher's argv. ``source`` names the plan (descriptor or digest)."""
    line = [launcher_path(), *(["--nest"] if launch.nested else []), *source]
    for name, path in launch.binds:
        line += ["--bind", f"{name}={path}"]
    if launch.cwd is not None:
        line += ["--cwd", launch.cwd]
    if launch.spool is not None:
        line += ["--spool", launch.spool]
    if launch.state_home is not None:
        line += ["--state-home", launch.state_home]
    if launch.timeout_ms is not None:
        line += ["--timeout-ms", str(launch.timeout_ms)]
    if launch.quiet:
        line.append("--quiet")
    return [*line, *extra, "--", *launch.argv]


def above_streams(fd: int) -> int:
    """Return the descriptor under a number above 2.

    Where the caller has closed a standard stream the kernel gives us its number, and the child's
    set-up of its streams, or the launcher's, would replace what we hand over.
    """
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def closed_streams(kept: Sequence[int] = ()) -> list[int]:
    """Return which of the numbers 0 to 2 a child would find closed. Args: kept: handed over anyway."""
    found = []
    for number in range(3):
        try:
            gone = fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        except OSError:
            gone = 1
        if gone and number not in kept:
            found.append(number)
    return found


def sealed_memfd(name: str, data: bytes) -> int:
    """Return a sealed memory file that holds ``data``; close it after the start."""
    fd = above_streams(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def env_items(pairs: Sequence[tuple[str, str]]) -> bytes:
    """Return variables in the form of the launcher's ``--setenv-fd``."""
    return b"".join(os.fsencode(name) + b"=" + os.fsencode(value) + b"\0" for name, value in pairs)


def __getattr__(name: str) -> Any:
    """Load what waits for a child on first use (PEP 562)."""
    if name not in ("Box", "select_readable"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stockade.process import _box

    value = globals()[name] = getattr(_box, name)
    return value


def become(launch: Launch) -> NoReturn:
    """Replace this process by the launcher: no Python stays beside the box.

    The command's caller is then whoever started us, so the box is tied to nobody else.
    Raises: LaunchFailed or Refused when the launcher cannot be started.
    """
    extra: list[str] = []
    try:
        plan = sealed_memfd("stockade-plan", launch.plan)
        kept = [plan]
        if launch.set_env:
            values = sealed_memfd("stockade-env", env_items(launch.set_env))
            kept.append(values)
            extra = ["--setenv-fd", str(values)]
        line = command_line(launch, source=["--plan-fd", str(plan)], extra=extra)
        for fd in kept:
            os.set_inheritable(fd, True)
        _forget_python()
        os.execv(line[0], line)
    except OSError as err:
        raise start_error(err) from err


def become_unconfined(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> NoReturn:
    """Replace this process by a command without a box of its own (D1, D3, D4, D7, D11). Raises: OSError."""
    os.chdir(cwd)
    _forget_python()
    os.execvpe(argv[0], list(argv), dict(env))


def _forget_python() -> None:
    """Undo what the interpreter did to this process; exec would hand it on.

    Python ignores SIGPIPE and SIGXFSZ: a command that inherits that never ends behind a closed pipe.
    """
    import _signal  # type: ignore[import-not-found]  # ``signal`` is this with ``enum`` around it, and 4 ms

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)


def own_program(argv: Sequence[str], env: Mapping[str, str], *, cwd: str,
                pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a program of this package without a box, with pipes; only ``stockade.prove`` does.

    No request of a caller leads here: it is for attacks on fixtures that have to be shown to work
    first, and for another sandbox that they are tried in. In a session of its own: Ctrl-C at the
    terminal is for the one who started us. Raises: LaunchFailed or Refused.
    """
    import subprocess

    try:
        return subprocess.Popen(list(argv), env=dict(env), cwd=cwd, pass_fds=tuple(pass_fds), start_new_session=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as err:
        raise start_error(err) from err


def launcher_facts() -> bytes:
    """Return the launcher's own description of itself and of this kernel (JSON)."""
    import subprocess

    try:
        done = subprocess.run([launcher_path(), "--version", "--json"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        raise LaunchFailed("launch_failed", f"launcher --version: got no answer within {ANSWER_S:g} s, "
                           "expected its facts") from None
    except OSError as err:
        raise start_error(err) from err
    if done.returncode != 0:
        raise LaunchFailed("launch_failed", f"launcher --version: got status {done.returncode}, expected 0",
                           returncode=done.returncode)
    return done.stdout


def answers(path: str) -> bool:
    """Tell whether the file system behind a path answers; this process does not look itself.

    Raises: Refused or LaunchFailed where nobody could ask.
    """
    import subprocess

    try:
        done = subprocess.run([launcher_path(), "--look", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    except OSError as err:
        raise start_error(err) from err
    if done.returncode not in (0, 1):  # launcher/src/look.rs
        raise Refused("resource", f"look at {path!r}: got status {done.returncode} of the launcher, expected 0 or 1",
                      transient=True)
    return done.returncode == 0


def start_error(err: OSError) -> Exception:
    """Return the typed error for a launcher that could not be started."""
    short = shortage(err, "start of the launcher")
    if short is not None:
        return short
    hint = TOO_LONG if err.errno == errno.E2BIG else None
    return LaunchFailed("launch_failed", f"launcher: could not be started: {err.strerror}", hint=hint)
