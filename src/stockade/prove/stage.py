"""The fixtures: a home with secrets, a project, and a process outside, all made for the attacks.

Owns: one private directory, the process of ``victim.py`` and the variables that are planted. What
the attacks do happens here and nowhere else; the user's own files are neither read nor changed.
While a stage is open, the environment of this process says that its home is the home, so that the
state home of the boxes is a fixture as well. Fails closed: what could not be made is not in
``made`` and the attack on it is not tried. The victim removes the directory when its input ends,
so that nothing stays when this process is killed. Read next: ``victim.py``, ``catalogue.py``.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stockade.errors import LaunchFailed
from stockade.paths import OUR_VARIABLES, canonical
from stockade.process import _exec
from stockade.prove import samples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
WAIT_S = 20.0
# Both are private in every box. A path socket has 107 bytes for its whole name.
_PLACES = ("/var/tmp", "/tmp")
MARK = "attacked"
OLD_S = 1_000_000_000


class Stage:
    """Everything that is attacked. Open it with ``opened``."""

    def __init__(self, base: str, process: Any = None) -> None:
        self.base = base
        self.home = f"{base}/home"
        self.project = f"{self.home}/project"
        self.state = f"{self.home}/.local/state/stockade"
        self.config = f"{self.home}/.config/stockade/config.toml"
        self.runtime = f"{base}/run"
        self.granted = f"{base}/granted"
        self.outside = f"{base}/outside"
        self.fifo = f"{self.project}/leash"
        self.secret = f"planted-{secrets.token_hex(8)}"
        self.memory = self.argument = ""
        self.key = 0x50000000 | secrets.randbits(24)
        self.name = f"stockade-prove-{secrets.token_hex(8)}"
        self.variables = samples.variables(self.secret)
        self.victim: dict[str, Any] = {}
        self.nice = 0
        self._process = process

    # -- the directory -----------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """Return a path below the home."""
        return f"{self.home}/{name}"

    def write(self, path: str, text: str | None = None, mode: int = 0o600) -> bool:
        """Plant a file; tell whether its directories allow it."""
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(self.secret if text is None else text)
            os.chmod(path, mode)
            os.utime(path, (OLD_S, OLD_S))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            return False
        return True

    def text(self, path: str) -> str:
        """Return what a file holds now, seen from outside; nothing when it is gone."""
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                return stream.read(4096)
        except OSError:
            return ""

    def lay(self) -> None:
        """Plant everything afresh; what stays is our own state, with records of boxes, and the sockets."""
        stays = {".local", *(name.split("/")[0] for name in samples.HOME_SOCKETS)}
        for directory in (self.home, self.granted, self.outside):
            os.makedirs(directory, exist_ok=True)
            for name in os.listdir(directory):
                if name not in stays:
                    _remove(os.path.join(directory, name))
        os.makedirs(f"{self.state}/keys", mode=0o700, exist_ok=True)
        for path in (f"{self.state}/keys/prove.key", *map(self.path, samples.credentials()),
                     *(self.path(name) for name in ("notes.txt", *samples.TARGETS)), f"{self.outside}/data"):
            self.write(path)
        for name in samples.TARGETS:
            self.write(f"{self.granted}/{name}", mode=0o644)
        self.write(self.config, "# planted\n")
        self._lay_project()

    def _lay_project(self) -> None:
        git = f"{self.project}/.git"
        for name in ("objects", "refs/heads", "hooks", "info"):
            os.makedirs(f"{git}/{name}")
        self.write(f"{git}/HEAD", "ref: refs/heads/main\n")
        self.write(f"{git}/config", "[core]\n\trepositoryformatversion = 0\n")
        self.write(f"{git}/hooks/pre-commit", "#!/bin/sh\n", 0o700)
        for name in samples.persistence():
            self.write(f"{self.project}/{name}", "{}\n")
        for name in samples.workspace_secrets():
            self.write(f"{self.project}/{name}")
        os.mkdir(f"{self.project}/mounted")
        os.mkfifo(self.fifo, 0o600)

    # -- the environment ---------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the caller's environment: an ordinary one with what is planted."""
        own = {"PATH": os.environ.get("PATH", os.defpath), "HOME": self.home, "LANG": "C.UTF-8", "TERM": "dumb",
               "XDG_RUNTIME_DIR": self.runtime}
        return {**{item.name: item.value for item in self.variables}, **own}

    # -- the process outside -----------------------------------------------------------------------

    def furnish(self) -> None:
        """Have the process outside make what is attacked. Raises: LaunchFailed."""
        sockets = [f"{self.runtime}/{name}" for name in samples.RUNTIME_SOCKETS]
        sockets += [self.path(name) for name in samples.HOME_SOCKETS]
        self.victim = self._ask({"secret": self.memory, "key": self.key, "queue": f"/{self.name}", "sockets": sockets,
                                 "shm_file": f"/dev/shm/{self.name}", "abstract": self.name})

    def signalled(self) -> bool:
        """Tell whether the victim got the attack's signal since the last look."""
        return bool(self._ask({})["signalled"])

    def has(self, *names: str) -> bool:
        """Tell whether the victim holds these objects or sockets."""
        return set(names) <= {*self.victim["made"], *self.victim["sockets"]}

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise _silent() from None
        return _answer(self._process)


def _answer(process: Any) -> dict[str, Any]:
    """Return the next line of the process outside. Raises: LaunchFailed."""
    try:
        ready = _exec.select_readable(process.stdout.fileno(), WAIT_S)
        answer: dict[str, Any] = json.loads(process.stdout.readline() if ready else b"")
    except (OSError, ValueError):
        raise _silent() from None
    if answer.get("failed"):
        raise OSError(answer["failed"], "in the process outside")
    return answer


def _silent() -> LaunchFailed:
    return LaunchFailed("prove_failed", "process outside: got no answer, expected one")


def python() -> list[str]:
    """Return the interpreter of this process, outside any venv, with nothing of the user's in it."""
    return [canonical(sys.executable), "-I", "-S", "-B"]


def _named_place() -> list[str]:
    """Return where the caller's variables say; nothing where no file can be written, which it finds out by writing."""
    try:
        return [tempfile.gettempdir()]
    except FileNotFoundError:
        return []


@contextmanager
def opened() -> Iterator[Stage]:
    """Make the stage, and remove it however this ends. Raises: LaunchFailed ``prove_failed``."""
    memory, argument = (f"planted-{secrets.token_hex(8)}" for _ in range(2))
    env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "PLANTED": memory}
    places = [*_PLACES, *_named_place()]
    # What the caller's mask would open to others, or close to the attacks themselves, is no fixture.
    mask = os.umask(0o077)
    try:
        yield from _opened(memory, argument, env, places)
    finally:
        os.umask(mask)


def _opened(memory: str, argument: str, env: dict[str, str], places: list[str]) -> Iterator[Stage]:
    process = _exec.own_program([*python(), f"{HERE}/victim.py", argument, *places], env, cwd="/")
    before = {name: os.environ.get(name) for name in OUR_VARIABLES}
    try:
        base = _answer(process)["base"]
        if not base:
            wanted = ", ".join(map(repr, places))
            raise LaunchFailed("prove_failed", f"fixtures: got no place that takes them, expected one of {wanted}")
        stage = Stage(base, process)
        stage.memory, stage.argument = memory, argument
        stage.furnish()
        stage.lay()
        for name in OUR_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(HOME=stage.home, XDG_RUNTIME_DIR=stage.runtime)
        yield stage
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _end(process)


def _end(process: Any) -> None:
    """End the process outside: it removes everything, and this waits for it."""
    try:
        process.stdin.close()
    except OSError:
        pass  # it has ended
    process.wait()
    process.stdout.close()


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
