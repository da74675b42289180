"""Generated system files of the box: passwd, group, nsswitch, resolv.conf, hosts, ssh config.

Made on the host through NSS, so that accounts of a directory service appear without the box
reaching its socket. Only the caller, root and nobody are named: other accounts of the machine
are none of the box's business. Fails closed: a caller without an entry gets a made-up one with
its own numbers, never root's. Read next: ``strict.py``.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat

MAX_SSH_FILE = 64 * 1024


def passwd(uid: int, gid: int, home: str, shell: str | None = None) -> str:
    """Return the text of /etc/passwd for a box of this caller."""
    name = user_name(uid)
    try:
        entry = pwd.getpwuid(uid)
        gecos, login = entry.pw_gecos.split(",")[0], shell or entry.pw_shell or "/bin/sh"
    except KeyError:
        gecos, login = "", shell or "/bin/sh"
    lines = [f"{name}:x:{uid}:{gid}:{_field(gecos)}:{_field(home)}:{_field(login)}"]
    if uid != 0:
        lines.insert(0, "root:x:0:0:root:/root:/bin/sh")
    if uid != 65534:
        lines.append("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin")
    return "\n".join(lines) + "\n"


def group(gid: int, groups: tuple[int, ...] = ()) -> str:
    """Return the text of /etc/group: root, the caller's groups, and nogroup."""
    numbers = sorted({0, gid, *groups, 65534})
    return "".join(f"{group_name(number)}:x:{number}:\n" for number in numbers)


def user_name(uid: int) -> str:
    """Return the account's name, or ``user`` for a number without one."""
    try:
        return _field(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return "user"


def group_name(gid: int) -> str:
    """Return the group's name, or ``g<number>`` for a number without one."""
    if gid == 0:
        return "root"
    try:
        return _field(grp.getgrgid(gid).gr_name)
    except KeyError:
        return "nogroup" if gid == 65534 else f"g{gid}"


def nsswitch(*, network: bool) -> str:
    """Names come from files and DNS only: no socket of a host's name service is needed."""
    hosts = "files dns" if network else "files"
    return (f"passwd: files\ngroup: files\nshadow: files\nhosts: {hosts}\n"
            "networks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n")


RESOLV_NONE = "# this box has no network\noptions attempts:1 timeout:1\n"


def hosts(hostname: str) -> str:
    """Return the text of /etc/hosts for a box without the host's network."""
    return f"127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost ip6-loopback\n"


def ssh_config_files(base: str = "/etc/ssh") -> dict[str, str] | None:
    """Return relative name -> text of the system's ssh client configuration, or None.

    ssh refuses configuration whose owner is neither root nor the caller, and in a user
    namespace root's files belong to nobody; copies made by the launcher belong to the caller.
    """
    if not os.path.isdir(base):
        return None
    found: dict[str, str] = {}
    names = ["ssh_config", "ssh_known_hosts"]
    extra = os.path.join(base, "ssh_config.d")
    if os.path.isdir(extra):
        names += [f"ssh_config.d/{name}" for name in sorted(os.listdir(extra))[:100]]
    for name in names:
        text = public_text(os.path.join(base, name), MAX_SSH_FILE)
        if text is not None:
            found[name] = text
    return found


def public_text(path: str, limit_bytes: int) -> str | None:
    """Return the text of a small file that everybody may read, else None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        info = os.fstat(fd)
        # Only what everybody may read: a copy must not publish root's private file.
        if not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o004 or info.st_size > limit_bytes:
            return None
        data = stream.read(limit_bytes)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _field(text: str) -> str:
    """A colon or line break in an account field would forge another entry."""
    clean = "".join(char for char in text if char.isprintable() and char != ":")
    return clean.encode("utf-8", "replace").decode("utf-8")
