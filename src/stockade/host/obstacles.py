"""Why no box starts here: one name for each obstacle, what shows it, and what to paste.

Owns: the classes of unavailability. Each is told by the launcher's own refusal (code, object, errno)
together with a fact of this host, never by the refusal alone. Fails closed: what nothing here
explains is ``unexplained`` and keeps the launcher's words; only a setting that root can take back
is offered for ``doctor --fix``. Read next: ``probe.py``, docs/hosts.md.
"""

from __future__ import annotations

import os

from stockade.codes import CODES
from stockade.frozen import dataclass, field
from stockade.host import facts
from stockade.host.facts import HostFacts
from stockade.host.standing import FIRST_PID_NS, FIRST_USER_NS

_NAMESPACES = frozenset({"userns_denied", "map_denied", "namespace_denied"})
_MOUNTS = frozenset({"mount_denied", "proc_denied", "overlay_denied", "pivot_denied", "dev_denied", "source_denied"})
_KINDS = ("user", "mnt", "pid", "ipc", "uts", "cgroup", "net")
_DROP_IN = "/etc/systemd/system/{unit}.d/60-stockade.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What the launcher was refused: its code, step, object and the name of the error number."""

    code: str
    step: int | None = None
    object: str = ""
    errno: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """``name``: the class. ``commands``: to paste on this host; words stand behind ``#``.

    ``sysctl``: a setting and its value, where that is the whole remedy.
    """

    name: str
    reason: str
    commands: tuple[str, ...] = field(default=())
    sysctl: tuple[str, str] | None = None

    @property
    def remedy(self) -> str:
        """The commands on one line."""
        return "; ".join(command.removeprefix("# ") for command in self.commands)


def before_trying(host: HostFacts, backend: str = "namespaces") -> Obstacle | None:
    """Return what is known without a try, or None."""
    if backend == "landlock":
        return _without_namespaces(host)
    if host.kernel < (5, 12):
        return Obstacle(name="kernel_too_old", reason=f"kernel {host.release} has no mount_setattr",
                        commands=("# use Linux 5.12 or later",))
    if host.uid == 0 and not host.has_sys_admin:
        return Obstacle(name="root_without_sys_admin",
                        reason="root without CAP_SYS_ADMIN cannot give up being root",
                        commands=("setpriv --reuid 1000 --regid 1000 --clear-groups stockade doctor",
                                  "# or give the container the capability: --cap-add SYS_ADMIN"))
    return None


def _without_namespaces(host: HostFacts) -> Obstacle | None:
    if host.uid == 0:
        return Obstacle(name="landlock_for_users", reason="a root caller has no box without namespaces",
                        commands=("# start it as an ordinary user",))
    if host.landlock_abi < 6:
        return Obstacle(name="landlock_too_old", reason=f"Landlock alone needs ABI 6 (Linux 6.12): got ABI "
                        f"{host.landlock_abi}", commands=("# use Linux 6.12 or later with Landlock, or let this "
                                                          "process use user namespaces",))
    return None


def explain(cause: Cause, host: HostFacts, launcher: str) -> Obstacle:
    """Return the obstacle behind a refusal. Args: launcher: the file that a profile would name."""
    found = None
    if cause.code in _NAMESPACES:
        found = _settings(cause, host) or _root_of_a_namespace(cause, host) or _lsm(cause, host, launcher) \
            or _filter(cause, host) or _chroot(cause)
    elif cause.code in _MOUNTS:
        found = _covered_proc(cause, host) or _lsm(cause, host, launcher) or _filter(cause, host)
    elif cause.errno in ("EPERM", "ENOSYS", "EACCES"):
        found = _filter(cause, host)
    if found is not None:
        return found
    hint = cause.hint or CODES["no_backend"].hint
    return Obstacle(name="unexplained", reason=cause.message, commands=(f"# {hint}",))


def _settings(cause: Cause, host: HostFacts) -> Obstacle | None:
    """Source: namespaces(7), /proc/sys/user; a limit of 0 and one that is reached are both ENOSPC.

    With a limit of 0 no box starts, whatever was refused before the kernel came to it.
    """
    for kind in _KINDS:
        name = f"user.max_{kind}_namespaces"
        if facts.sysctl(name) == "0":
            return _sysctl("namespaces_off", name, "15000", f"{name} is 0: {kind} namespaces are switched off")
    if cause.errno == "ENOSPC" and _inner(host):
        return Obstacle(name="namespaces_limited", commands=("# start it outside of that sandbox",),
                        reason="a user namespace around this one allows no more of them, as bwrap --disable-userns "
                        "has it")
    name = "kernel.unprivileged_userns_clone"
    if host.uid != 0 and facts.sysctl(name) == "0":
        return _sysctl("userns_for_root_only", name, "1", f"{name} is 0: user namespaces are for root only")
    return None


def _sysctl(obstacle: str, name: str, value: str, reason: str) -> Obstacle:
    keep = f"echo {name}={value} >> /etc/sysctl.d/60-stockade.conf"
    return Obstacle(name=obstacle, reason=reason, commands=(f"sysctl -w {name}={value}", keep), sysctl=(name, value))


def _inner(host: HostFacts) -> bool:
    return bool(host.standing.namespaces) and host.standing.namespaces[0] != FIRST_USER_NS


def _root_of_a_namespace(cause: Cause, host: HostFacts) -> Obstacle | None:
    if host.uid != 0 or not _inner(host) or cause.code != "map_denied":
        return None
    return Obstacle(name="root_of_userns", reason="this root is an ordinary user to the kernel (it is root of a user "
                    "namespace), and has no id to give the box",
                    commands=("unshare --user --map-user=1000 --map-group=1000 stockade doctor",
                              "# or start it as an ordinary user of that container"))


def _lsm(cause: Cause, host: HostFacts, launcher: str) -> Obstacle | None:
    name = "kernel.apparmor_restrict_unprivileged_userns"
    # AppArmor says EACCES where a filter says EPERM; without a filter it is the one that is left.
    mine = cause.errno == "EACCES" or host.standing.seccomp <= 0
    if host.uid == 0 or not mine or facts.sysctl(name) != "1":
        return None
    return Obstacle(name="apparmor", reason=f"{name} is 1: AppArmor lets only programs with a profile use user "
                    "namespaces", commands=_apparmor(launcher))


def _apparmor(launcher: str) -> tuple[str, ...]:
    """Return commands that give the launcher alone the right, not every program of every user."""
    text = f'abi <abi/4.0>,\\nprofile stockade-launch "{launcher}" flags=(unconfined) {{\\n  userns,\\n}}\\n'
    return (f"printf '{text}' > /etc/apparmor.d/stockade-launch", "apparmor_parser -r /etc/apparmor.d/stockade-launch")


def _filter(cause: Cause, host: HostFacts) -> Obstacle | None:
    if host.standing.seccomp <= 0 or cause.errno not in ("EPERM", "ENOSYS", "EACCES"):
        return None
    name, what = ("filter_namespaces", "namespaces") if cause.code in _NAMESPACES else \
        ("filter_mounts", "mounts") if cause.code in _MOUNTS else ("filter_calls", "system calls")
    return Obstacle(name=name, reason=f"a seccomp filter around this process denies {what}: {cause.message}",
                    commands=_engine(host, unit=True))


def _chroot(cause: Cause) -> Obstacle | None:
    """Source: user_namespaces(7), EPERM: the root directory is not that of the mount namespace."""
    if cause.errno != "EPERM" or any(line.split(" ")[1] == "/" for line in facts.deciding_mounts()):
        return None
    return Obstacle(name="chroot", reason="below a root directory of chroot(2) the kernel makes no user namespace",
                    commands=("# enter that directory by bwrap --dev-bind DIRECTORY / or systemd-nspawn, not chroot",))


def _covered_proc(cause: Cause, host: HostFacts) -> Obstacle | None:
    """Source: fs/namespace.c, mount_too_revealing: a new proc must show no more than the old one."""
    if cause.code != "proc_denied":
        return None
    covers = [line.split(" ")[1] for line in host.mounts if line.split(" ")[1].startswith("/proc/")]
    if not covers:
        return None
    engine = _engine(host, unit=False)
    return Obstacle(name="proc_covered", reason=f"a part of /proc is covered ({' '.join(covers[:5])}), so that the "
                    "kernel makes no fresh one", commands=engine or tuple(f"umount {point}" for point in covers[:5]))


# comm(5) of process 1 in sandboxes of one command; the kernel keeps fifteen characters.
_TOOLS = {"bwrap": "bubblewrap", "codex-linux-san": "codex's sandbox", "firejail": "firejail"}


def _engine(host: HostFacts, *, unit: bool) -> tuple[str, ...]:
    """Return what to tell whoever confines this process; empty where that cannot be told and ``unit`` is False."""
    # An image that became a virtual machine has an engine's files, too; its processes are the machine's.
    contained = bool(host.container_id) or host.standing.namespaces[2:3] != (FIRST_PID_NS,)
    tool = _TOOLS.get(facts.text("/proc/1/comm").strip(), "")
    if contained and tool:
        return (f"# start it outside of {tool}, or have {tool} allow what was denied",)
    if contained and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ("# in the pod: hostUsers: false, procMount: Unmasked, seccompProfile: {type: Unconfined}",)
    if contained and os.path.exists("/run/.containerenv"):
        return ("podman run --security-opt seccomp=unconfined --security-opt unmask=ALL IMAGE",)
    if contained and (host.container_id or os.path.exists("/.dockerenv")):
        return ("docker run --user 1000 --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
                "--security-opt systempaths=unconfined IMAGE",)
    name = _unit()
    if unit and name and os.environ.get("INVOCATION_ID"):
        path = _DROP_IN.format(unit=name)
        text = "[Service]\\nRestrictNamespaces=no\\nSystemCallFilter=\\n"
        return (f"mkdir -p {os.path.dirname(path)}", f"printf '{text}' > {path}",
                f"systemctl daemon-reload && systemctl restart {name}")
    return ("# start it outside of that sandbox, or let its filter allow clone and unshare with namespaces, mount, "
            "open_tree, move_mount, fsopen, fsconfig, fsmount, mount_setattr, pivot_root and umount2",) if unit else ()


def _unit() -> str:
    for line in facts.text("/proc/self/cgroup").splitlines():
        name = line.rpartition("/")[2]
        if name.endswith(".service"):
            return name
    return ""
