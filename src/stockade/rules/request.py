"""Step (1): turn what the caller wrote into one frozen, checked ``Request``.

Owns: argument validation, units, absolute paths. Reads the file system only to resolve paths.
Fails closed: an unknown name, a wrong type or an option that would weaken the box is a typed
error with the nearest known name; nothing is guessed and nothing is dropped.
Read next: ``stockade.rules.settings``, which fills what the caller left open.
"""

from __future__ import annotations

import os
import stat

from stockade.errors import ConfigError, Refused, nearest
from stockade.frozen import dataclass, field
from stockade.light import Callable, Iterable, Mapping, Sequence
from stockade.rules import names, units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.narrow import Ceiling

# Options that belong to the process, not to the box: ``stockade.process.api`` owns them.
PROCESS_OPTIONS = frozenset({
    "input", "stdin", "stdout", "stderr", "capture_output", "capture_limit_bytes", "text", "encoding",
    "errors", "bufsize", "pipesize", "timeout", "check", "umask", "restore_signals",
    "start_new_session", "process_group",
})

REQUEST_OPTIONS = frozenset({
    "tier", "caller", "profile", "cwd", "read", "write", "hide", "sockets", "devices", "allow", "net",
    "env", "set_env", "pass_env", "limits", "accept", "cache", "tmp", "on_persistence", "pass_fds",
    "publish",
})

# Options of subprocess that cannot be kept: the one harmless value, and why any other is refused.
REFUSED_OPTIONS: Mapping[str, tuple[Any, str]] = {
    "shell": (False, "a shell line hides what is run; give [\"sh\", \"-c\", LINE]"),
    "executable": (None, "argv[0] names the program, so that the record says what ran"),
    "preexec_fn": (None, "Python code between fork and exec can deadlock and would run outside the box"),
    "close_fds": (True, "an inherited descriptor is a way out of the box; name it in pass_fds"),
    "user": (None, "the box runs as the caller; start it as the user it should be"),
    "group": (None, "the box runs as the caller; start it as the user it should be"),
    "extra_groups": (None, "the box runs as the caller; start it as the user it should be"),
    "startupinfo": (None, "it belongs to another operating system"),
    "creationflags": (0, "it belongs to another operating system"),
    "universal_newlines": (None, "use text=True"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller wants, checked. ``None`` and ``()`` mean: left open.

    Paths are absolute; ``cwd`` is canonical. ``spelled``: how the caller wrote those of read and write
    that lead through symbolic links, by path. ``env_source`` None stands for ``os.environ`` at the
    start. ``ceiling``: what ``Sandbox.narrow`` took away. Values of variables are kept out of
    ``repr``: requests are logged.
    """

    argv: tuple[str, ...]
    cwd: str
    cwd_named: bool = False
    tier: str = "auto"
    caller: str = "generated"
    profiles: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    spelled: tuple[tuple[str, str], ...] = ()
    sockets: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    net: str | None = None
    env_source: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)
    set_env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    pass_env: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    accept: tuple[str, ...] = ()
    cache: str | None = None
    tmp: str | None = None
    on_persistence: str | None = None
    pass_fds: tuple[int, ...] = ()
    ceiling: Ceiling | None = None

    def environ(self) -> dict[str, str]:
        """Return the source of environment values as text (undecodable bytes as surrogates)."""
        return dict(os.environ if self.env_source is None else self.env_source)


# (1): build the request.
def build_request(args: Sequence[str | bytes | os.PathLike[str]], **options: Any) -> Request:
    """Check the arguments of ``run`` and return the frozen request.

    Args: args: argv; options: keyword arguments of ``stockade.run``. Options of the process
    (stdin, timeout ...) are known and left to the process layer.
    Raises: ConfigError (``argv_invalid``, ``unknown_option``, ``option_refused``, ``path_invalid``,
    ``value_invalid``, ``env_invalid``, ``unknown_*``), Refused (``net_unsupported`` ...).
    """
    check_options(options)
    argv = check_argv(args)
    env_source = _pairs("env", options.get("env")) if options.get("env") is not None else None
    home = _home(env_source)
    cwd = check_cwd(options.get("cwd"), home)
    fields: dict[str, Any] = {name: check(options.get(name)) for name, check in _CHECKS.items()}
    spelled: list[tuple[str, str]] = []
    for name in ("read", "write", "hide"):
        given = items(options.get(name))
        fields[name] = tuple([absolute(name, item, cwd, home) for item in given])
        if name != "hide":
            pairs = zip(fields[name], [joined(name, item, cwd, home) for item in given], strict=True)
            spelled += [(path, text) for path, text in pairs if path != os.path.normpath(text)]
    fields["spelled"] = tuple(spelled)
    return Request(
        argv=argv, cwd=cwd, cwd_named=options.get("cwd") is not None, env_source=env_source, **fields,
        profiles=tuple(_profile_name(item, cwd, home) for item in items(options.get("profile"))),
        sockets=tuple(_socket(item, cwd, home) for item in items(options.get("sockets"))),
        set_env=_pairs("set_env", options.get("set_env") or {}),
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse unknown options, and those of subprocess that would weaken the box."""
    for name, value in options.items():
        if name in REFUSED_OPTIONS:
            harmless, reason = REFUSED_OPTIONS[name]
            if value is not harmless and value != harmless:
                raise ConfigError("option_refused", f"option {name!r}: {reason}", hint=reason)
        elif name not in REQUEST_OPTIONS and name not in PROCESS_OPTIONS:
            hint = nearest(name, REQUEST_OPTIONS | PROCESS_OPTIONS)
            raise ConfigError("unknown_option", f"option {name!r}: not known", hint=hint)
    if options.get("publish"):
        raise Refused("publish_unsupported", "option 'publish': this version cannot publish a port of a box")


def check_argv(args: Any) -> tuple[str, ...]:
    """Return argv as text. A string is an error: splitting it would be guessing."""
    if isinstance(args, (str, bytes, os.PathLike)):
        kind = type(args).__name__
        raise ConfigError("argv_invalid", f"args: got one {kind}, expected a list of strings",
                          hint='give ["sh", "-c", LINE] for a shell line, [PROGRAM] for a program')
    try:
        argv = tuple(os.fsdecode(item) for item in args)
    except TypeError:
        raise ConfigError("argv_invalid", f"args: got {_kinds(args)}, expected a list of strings") from None
    if not argv or not argv[0]:
        raise ConfigError("argv_invalid", "args: got no command, expected at least one non-empty string")
    for index, item in enumerate(argv):
        if "\0" in item:
            # execve would silently cut the argument at the NUL.
            raise ConfigError("argv_invalid", f"args[{index}]: holds a NUL byte")
    return argv


def _kinds(args: Any) -> str:
    if not isinstance(args, Iterable):
        return f"a {type(args).__name__}"
    return "an item of type " + "/".join(sorted({type(item).__name__ for item in args}))


def items(value: Any) -> tuple[Any, ...]:
    """Return a list option as a tuple; one string stands for one item."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes, os.PathLike)):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return tuple(value)
    raise ConfigError("value_invalid", f"list option: got a {type(value).__name__}, expected a list")


def _home(env_source: tuple[tuple[str, str], ...] | None) -> str:
    given = os.environ.get("HOME", "") if env_source is None else dict(env_source).get("HOME", "")
    return given if given.startswith("/") else ""


def check_path(name: str, value: Any) -> str:
    """Return a path as text. A plan is UTF-8 JSON, so a path that is not cannot be in one."""
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise ConfigError("path_invalid", f"{name}: got a {type(value).__name__}, expected a path") from None
    if not text or "\0" in text:
        raise ConfigError("path_invalid", f"{name}: got {text!r}, expected a path without NUL")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError("path_invalid", f"{name} {text!r}: the name is not UTF-8") from None
    return text


def absolute(name: str, value: Any, cwd: str, home: str) -> str:
    """Return the path absolute, its parent canonical, its last name as given.

    The last name stays so that a granted link appears under the name its user knows; ``..`` is
    resolved by the kernel's rules, not by text (``link/..`` is not ``.``).
    """
    text = joined(name, value, cwd, home)
    parent, last = os.path.split(text.rstrip("/") or "/")
    if last in ("", ".", ".."):
        return os.path.realpath(text)
    return check_path(name, os.path.join(os.path.realpath(parent), last))


def joined(name: str, value: Any, cwd: str, home: str) -> str:
    """Return the path absolute, as it was written."""
    return os.path.join(cwd, expand_home(check_path(name, value), home))


def expand_home(text: str, home: str) -> str:
    """Replace a leading ``~`` or ``~/``; another user's home is not looked up."""
    if text == "~" or text.startswith("~/"):
        if not home:
            raise ConfigError("path_invalid", f"path {text!r}: HOME is not an absolute path")
        return home + text[1:]
    return text


def check_cwd(value: Any, home: str = "") -> str:
    """Return the working directory, canonical; it must exist and be a directory."""
    try:
        current = os.getcwd()
    except OSError:
        current = ""
    if value is None and not current:
        raise ConfigError("path_invalid", "cwd: the working directory has been deleted (ENOENT)",
                          hint="enter an existing directory, or name one")
    text = current if value is None else expand_home(check_path("cwd", value), home)
    if not current and not text.startswith("/"):
        raise ConfigError("path_invalid", f"cwd {text!r}: relative, and the working directory is deleted (ENOENT)")
    path = check_path("cwd", os.path.realpath(os.path.join(current, text)))
    try:
        info = os.stat(path)
    except OSError as error:
        raise ConfigError("path_invalid", f"cwd {path!r}: cannot be entered ({_errno(error)})",
                          hint="name an existing directory") from None
    if not stat.S_ISDIR(info.st_mode):
        raise ConfigError("path_invalid", f"cwd {path!r}: got a file, expected a directory (ENOTDIR)",
                          hint="name an existing directory")
    return path


def _errno(error: OSError) -> str:
    import errno
    return errno.errorcode.get(error.errno or 0, "EIO")


def _profile_name(value: Any, cwd: str, home: str) -> str:
    text = check_path("profile", value)
    if isinstance(value, os.PathLike) or "/" in text or text.endswith(".toml"):
        return absolute("profile", text, cwd, home)
    return text  # whether it exists is known once the directories are read


def _socket(value: Any, cwd: str, home: str) -> str:
    text = check_path("sockets", value)
    return absolute("sockets", text, cwd, home) if "/" in text else names.check_grant(text, "sockets")


def _pairs(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    """Return an environment mapping as sorted pairs; an error names the variable, never its value."""
    if not isinstance(value, Mapping):
        raise ConfigError("env_invalid", f"{name}: got a {type(value).__name__}, expected a mapping")
    found: dict[str, str] = {}
    for key, item in value.items():
        if not isinstance(key, (str, bytes)) or not isinstance(item, (str, bytes)):
            raise ConfigError("env_invalid", f"{name}: got {type(key).__name__} to {type(item).__name__}, "
                              "expected strings")
        variable, content = os.fsdecode(key), os.fsdecode(item)
        if name != "env":  # the source may hold anything that the caller's own environment holds
            check_variable(name, variable)
        if "\0" in content or "\0" in variable:
            raise ConfigError("env_invalid", f"{name} variable {variable!r}: holds a NUL byte")
        found[variable] = content
    return tuple(sorted(found.items()))


def check_variable(name: str, variable: str) -> str:
    """Return the variable's name, or raise ``env_invalid``."""
    if not variable or "=" in variable or "\0" in variable:
        raise ConfigError("env_invalid", f"{name} variable {variable!r}: empty, or holds = or NUL")
    return variable


def _pass_env(value: Any) -> tuple[str, ...]:
    found = []
    for item in items(value):
        if not isinstance(item, (str, bytes)):
            raise ConfigError("env_invalid", f"pass_env: got a {type(item).__name__}, expected a name")
        variable = check_variable("pass_env", os.fsdecode(item))
        if "*" in variable:
            # A pattern would grant variables nobody looked at; profiles are where they are reviewed.
            raise ConfigError("env_invalid", f"pass_env {variable!r}: a pattern, expected a name",
                              hint="name each variable")
        found.append(variable)
    return tuple(dict.fromkeys(found))


def _devices(value: Any) -> tuple[str, ...]:
    found = []
    for item in items(value):
        text = check_path("devices", item)
        path = os.path.normpath(text if text.startswith("/") else f"/dev/{text}")
        if not path.startswith("/dev/"):
            raise ConfigError("path_invalid", f"devices {text!r}: not below /dev")
        found.append(path)
    return tuple(dict.fromkeys(found))


def _pass_fds(value: Any) -> tuple[int, ...]:
    found = set()
    for item in items(value):
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise ConfigError("value_invalid", f"pass_fds: got {item!r}, expected a descriptor number")
        found.add(item)
    return tuple(sorted(found - {0, 1, 2}))


# Words of other tools and of habit for one of the two; the nearest by letters would be the other one.
NET_WORDS = {**dict.fromkeys(("on", "yes", "true", "all", "any", "full", "open", "internet", "allow"), "host"),
              **dict.fromkeys(("off", "no", "false", "deny", "closed", "disabled", "isolated"), "none")}


def check_net(value: Any) -> str | None:
    """Return ``host``, ``none`` or None. ``[]`` is none: an empty allow-list allows nothing."""
    if value is None:
        return None
    wanted = [item.strip() for item in value.split(",")] if isinstance(value, str) else list(items(value))
    if not wanted:
        return "none"
    if len(wanted) == 1 and wanted[0] in ("host", "none"):
        return str(wanted[0])
    for item in wanted:
        if not isinstance(item, str) or not item or (item.isalpha() and item not in ("host", "none", "localhost")):
            meant = NET_WORDS.get(str(item).lower())
            raise ConfigError("value_invalid", f"net {item!r}: expected host or none",
                              hint=f"did you mean {meant!r}?" if meant else nearest(str(item), ("host", "none")))
    raise Refused("net_unsupported", f"net {wanted[0]!r}: network lists are not available in this version")


def check_limits(value: Any) -> tuple[tuple[str, int], ...]:
    """Return limits as sorted pairs of plan keys; sizes in bytes, times in seconds, wall in ms."""
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ConfigError("value_invalid", f"limits: got a {type(value).__name__}, expected a mapping")
    found: dict[str, int] = {}
    for key, item in value.items():
        if key not in _LIMITS:
            raise ConfigError("unknown_list_key", f"limits key {key!r}: not known", hint=nearest(str(key), _LIMITS))
        plan_key, parse = _LIMITS[key]
        if item is not None:
            found[plan_key] = parse(f"limits.{key}", item)
    return tuple(sorted(found.items()))


_LIMITS: Mapping[str, tuple[str, Callable[[str, Any], int]]] = {
    "processes": ("processes", units.count),
    "files": ("files", units.count),
    "cpu_time_s": ("cpu_time_s", units.seconds),
    "memory_bytes": ("memory_bytes", units.size),
    "address_space_bytes": ("address_space_bytes", units.size),
    "wall": ("wall_ms", units.milliseconds),
}


def check_on_persistence(value: Any) -> str | None:
    """Return ``report``, ``quarantine``, ``fail`` or None."""
    return units.choice("on_persistence", value, ("report", "quarantine", "fail"))


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "tier": names.check_tier,
    "caller": names.check_caller,
    "devices": _devices,
    "allow": lambda value: tuple(names.check_grant(item, "allow") for item in items(value)),
    "net": check_net,
    "pass_env": _pass_env,
    "limits": check_limits,
    "accept": lambda value: tuple(dict.fromkeys(names.check_accept(item) for item in items(value))),
    "cache": lambda value: units.choice("cache", value, ("keep", "ephemeral", "off")),
    "tmp": units.tmp,
    "on_persistence": check_on_persistence,
    "pass_fds": _pass_fds,
}
