"""The keywords of the Python interface, for type checkers and for the functions that take them.

Owns: the names and types of every option, once. The public functions repeat the names, so that
``help`` and completion show them; a test compares both. Nothing here runs but ``collected``.
Fails closed: a name that no function knows stays in and is refused by ``rules/request.py``.
"""

from __future__ import annotations

import os

from stockade.light import Iterable, Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, TypeAlias, TypedDict

    from stockade.rules.tiers import Caller, Tier

    Text = str | bytes
    Path = str | bytes | os.PathLike[str]
    Paths = Path | Iterable[Path]
    Words = str | Iterable[str]
    # Not the closed lists of words: they come from settings of the caller, and are checked at run time.
    TierName: TypeAlias = str | Tier
    Class: TypeAlias = str | Caller
    Env = Mapping[str, str] | Mapping[bytes, bytes]
    Stream = int | IO[Any] | None

    class BoxOptions(TypedDict, total=False):
        """What the box may reach, and what it is."""

        tier: TierName
        caller: Class
        profile: Paths
        cwd: Path | None
        read: Paths
        write: Paths
        hide: Paths
        sockets: Paths
        devices: Paths
        allow: Words
        net: Words | None
        env: Env | None
        set_env: Env | None
        pass_env: Text | Iterable[Text]
        limits: Mapping[str, int | float | str | None] | None
        accept: Words
        cache: str | None
        tmp: str | None
        on_persistence: str | None

    class StartOptions(TypedDict, total=False):
        """How the process is started, in the words of ``subprocess.Popen``."""

        stdin: Stream
        stdout: Stream
        stderr: Stream
        bufsize: int
        pipesize: int
        umask: int
        restore_signals: bool
        start_new_session: bool
        process_group: int | None

    class WaitOptions(TypedDict, total=False):
        """What ``run`` adds to a start."""

        input: Text | None
        capture_output: bool
        capture_limit_bytes: int | None
        timeout: float | None
        check: bool

    class PopenOptions(BoxOptions, StartOptions, total=False):
        """The options of ``Popen`` and ``spawn``, without those of text."""

        pass_fds: Iterable[int]

    class RunOptions(PopenOptions, WaitOptions, total=False):
        """The options of ``run`` and ``run_async``, without those of text."""

    class CallOptions(StartOptions, total=False):
        """What one call of a sandbox may say: nothing of it changes what the box may reach."""

        cwd: Path | None
        set_env: Env | None

    class CallRunOptions(CallOptions, WaitOptions, total=False):
        """The same for a call that waits."""


Args = Sequence["str | bytes | os.PathLike[str]"]


def collected(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options from the local names of a public function, unknown ones included."""
    options = {name: value for name, value in found.items() if name not in _NO_OPTIONS}
    return {**options, **found.get("refused", {})}


_NO_OPTIONS = frozenset({"self", "args", "pin", "host", "refused", "__class__"})
