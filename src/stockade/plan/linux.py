"""The mount table of a box under namespaces.

Owns: what is common to every tier (private /tmp, /run, /dev, /proc, write roots, caches, grants)
and the view of standard and guarded: the host's root read-only, the home behind an overlay in
which hidden names do not exist. ``strict.py`` owns the root that is built from grants.
Fails closed: a row that cannot be placed is refused, never left out (only rows marked optional
may be missing). Read next: ``table.py``, ``strict.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.errors import Refused
from stockade.light import Iterable
from stockade.plan import accounts, mountinfo, rows
from stockade.plan.hiding import Hidden, kept_children, within
from stockade.plan.rows import Row
from stockade.plan.table import Table
from stockade.plan.want import Want, below_any, is_below

PRIVATE = ("/tmp", "/var/tmp", "/run", "/dev", "/proc")
SCRATCH = "/tmp/scratch"
CONFIG_DIR = "/run/config"
MAIL = ("/var/mail", "/var/spool/mail")

# Entries of /proc through which a process could act on the machine. Source: proc(5) and the masked
# paths of the container engines; "scsi" and "acpi" take commands by being written.
PROC_COVERS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "pressure")
# Covered only where they are there and open to others: a cover of what cannot be opened is a mount
# for nothing.
PROC_MORE = ("driver", "kcore", "kmsg", "latency_stats", "mtrr", "sched_debug", "timer_list", "timer_stats")
# These list the caller's keys on the host (Kerberos and CIFS principals): the uid is the same.
PROC_MASKS = ("/proc/keys", "/proc/key-users")

GIB = 1 << 30


def memory_budget(ram_bytes: int) -> int:
    """All tmpfs of a box together: at most a quarter of RAM and 4 GiB."""
    return min(ram_bytes // 4, 4 * GIB)


def idmap_of(path: str, want: Want) -> tuple[bool, tuple[int, int] | None]:
    """Tell whether a row needs an id map for a root caller, and whose files it shows."""
    if not want.ids.shifted:
        return False, None
    if below_any(path, list(want.write)):
        return True, owner_of(path)
    if below_any(path, list(want.homes)) or is_below(path, want.state_home):
        return True, owner_of(path)
    return False, None


def owner_of(path: str) -> tuple[int, int]:
    """Return owner and group of a path, or of the nearest parent that exists."""
    current = path
    while True:
        try:
            info = os.stat(current)
            return info.st_uid, info.st_gid
        except OSError:
            if current == "/":
                return 0, 0
            current = os.path.dirname(current)


def show(path: str, want: Want, *, hidden: tuple[Hidden, ...] = (), kind: str = "any",
         optional: bool = False, target: str | None = None) -> list[Row]:
    """Rows that show a path read-only, without the hidden names inside it."""
    idmap, owner = idmap_of(path, want)
    inside = within(hidden, path)
    if not inside or not os.path.isdir(path):
        return [rows.bind(path, target, kind=kind, optional=optional, idmap=idmap, owner=owner)]
    return _overlay(path, inside, want, idmap=idmap, owner=owner)


def _overlay(path: str, inside: list[Hidden], want: Want, *, idmap: bool,
             owner: tuple[int, int] | None) -> list[Row]:
    """One overlay over ``path``; its own submounts are shown again, each without its hidden names."""
    points = [point for point in mountinfo.submounts(want.mounts, path)
              if not below_any(point, [item.path for item in inside])]
    direct = [item for item in inside if not below_any(item.path, points)]
    # In a write root the guards mask it: that mount lies over this one.
    kept = [item for item in direct if item.open and os.path.isdir(item.path) and not below_any(item.path, want.write)]
    # What lies in a directory that stays, nearly empty, is taken away where that shows it.
    nested = [item for item in direct if any(item.path.startswith(outer.path + "/") for outer in kept)]
    kept = [item for item in kept if item not in nested]
    gone = [item for item in direct if item not in kept and item not in nested]
    relative = len(path.rstrip("/")) + 1
    found = [rows.overlay(path, hide=[item.path[relative:] for item in gone],
                          dirs=[item.path[relative:] for item in kept], idmap=idmap, owner=owner)]
    for item in kept:
        found.extend(_keep_rows(item, want, tuple(nested)))
    for point in points:
        if not below_any(point, list(want.write)):
            found.extend(_submount(point, want, tuple(inside)))
    return found


def _submount(point: str, want: Want, hidden: tuple[Hidden, ...]) -> list[Row]:
    """A mount inside what is shown; one that may not answer is shown without a look at it.

    Without an id map, too: for a root caller it belongs to nobody, as FUSE and NFS have none.
    """
    mount = next((m for m in want.mounts if m.point == point), None)
    if mount is None or mount.fstype == "autofs":
        return []
    if mount.distant and not within(hidden, point):
        return [rows.bind(point, kind="mount", optional=True)]
    return show(point, want, hidden=hidden, optional=True)


def _keep_rows(item: Hidden, want: Want, hidden: tuple[Hidden, ...]) -> list[Row]:
    """A directory that is empty but for a few names: also names that appear later stay away."""
    found = [rows.tmpfs(item.path, mode="0700", size_bytes=1 << 20)]
    real = os.path.realpath(item.path)
    for path in (*kept_children(item), *item.shown):
        source = real + path[len(item.path):]
        if source == path:
            found.extend([] if below_any(path, want.write) else show(path, want, hidden=hidden, optional=True))
        elif not within(hidden, source):
            # The directory is a link on the host: its place holds the same names, from where they are.
            idmap, owner = idmap_of(path, want)
            found.append(rows.bind(source, path, idmap=idmap, owner=owner, optional=True))
    return found


def common(table: Table, want: Want) -> None:
    """Private places that every tier has."""
    budget = memory_budget(want.ram_bytes)
    # /proc before anything below it; sizes: the shares below add up to less than the budget.
    table.add(rows.proc(proc_covers()), rows.dev(budget // 4))
    if not want.ids.shifted:  # a root caller's box is another uid, which has no keys
        table.add(*(rows.mask(path, is_dir=False) for path in PROC_MASKS if os.path.exists(path)))
    _tmp(table, want, budget)
    table.add(rows.tmpfs("/run", size_bytes=budget // 32))
    uid = want.ids.uid
    table.add(rows.directory(f"/run/user/{uid}", "0700"), rows.directory("/run/lock", "1777"))
    for name, text in want.generated:
        table.add(rows.file(f"{CONFIG_DIR}/{name}", text))
    if want.cwd is None:
        table.add(rows.directory(SCRATCH, "0700"))
    for device in want.devices:
        table.add(rows.bind(device, attrs=("nosuid",), recursive=False))


def proc_covers() -> tuple[str, ...]:
    """Return the entries of /proc to make read-only: the box is "others" to whoever owns them."""
    return (*PROC_COVERS, *(name for name in PROC_MORE if _others_act(f"/proc/{name}")))


def _others_act(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return bool(mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IWOTH))


def _tmp(table: Table, want: Want, budget: int) -> None:
    size = min(want.tmp_bytes or budget // 2, budget)
    if want.tmp_disk:
        table.add(rows.bind("@tmp", "/tmp", attrs=rows.SAFE, kind="dir", recursive=False,
                            idmap=want.ids.shifted, owner=owner_of(want.state_home)))
    else:
        table.add(rows.tmpfs("/tmp", mode="1777", size_bytes=size))
    if want.strict or (os.path.isdir("/var/tmp") and not os.path.islink("/var/tmp")):
        table.add(rows.tmpfs("/var/tmp", mode="1777", size_bytes=budget // 16))


def resolver(table: Table, want: Want) -> None:
    """Names resolve as outside with the host's network, through the target of the symlink.

    systemd-resolved, WSL and NetworkManager keep the file in /run or /mnt/wsl, which is private
    here; its directory is shown by its real path so that a later rename of the file is seen.
    """
    if want.net != "host":
        return
    target = os.path.realpath("/etc/resolv.conf")
    want.witness.saw("/etc/resolv.conf")
    directory = os.path.dirname(target)
    if not is_below(target, "/etc") and os.path.isdir(directory) and directory not in ("/", "/run"):
        table.add(rows.bind(directory, optional=True, kind="dir"))
    elif directory == "/run" and os.path.isfile(target):
        table.add(rows.bind(target, optional=True, kind="file"))


def sockets(table: Table, want: Want) -> None:
    """Granted sockets, at their own path; a directory that is the user's alone stays that.

    gpg looks at its mode, and starts an agent of its own where others could bind a name.
    """
    for path in want.sockets:
        place = os.path.dirname(path)
        if place not in table.targets() and _is_own_alone(place):
            table.add(rows.directory(place, "0700"))
        # connect() needs the right to write the socket's inode: a root caller needs the id map.
        table.add(rows.bind(path, attrs=("nodev", "nosuid", "noexec"), kind="socket", recursive=False,
                            idmap=want.ids.shifted, owner=owner_of(path)))


def _is_own_alone(path: str) -> bool:
    try:
        return stat.S_IMODE(os.lstat(path).st_mode) & 0o077 == 0
    except OSError:
        return False


def private(table: Table, want: Want) -> None:
    """Empty directories over those from which live sessions run code; what the box puts there ends with it."""
    for path in want.private:
        table.add(rows.tmpfs(path, mode="0700", size_bytes=memory_budget(want.ram_bytes) // 16))


def caches(table: Table, want: Want) -> None:
    """Caches of the identity: the user's own below, changes in the identity's upper."""
    for item in want.caches:
        if not item.upper:
            # ephemeral: empty, in memory, gone with the box
            table.add(rows.tmpfs(item.path, mode="0700", size_bytes=memory_budget(want.ram_bytes) // 16))
            continue
        table.add(rows.cache(item.lower, item.path, upper=item.upper, work=item.work,
                             idmap=want.ids.shifted, owner=owner_of(want.state_home)))


def host_view(table: Table, want: Want, hidden: tuple[Hidden, ...]) -> None:
    """standard and guarded: the host's root read-only, hidden names taken away."""
    if "/" in want.read:
        raise Refused("grant_unsupported", "grant read /: the host's root is shown read-only without it, but for what "
                      "the tier hides", hint="leave it out, or name the hidden directories that the box needs")
    table.add(rows.bind("/", attrs=rows.READ_ONLY, kind="dir"))
    homes = [home for home in (*want.homes, *_aliases(want)) if os.path.isdir(home) and home != "/"]
    # An overlay outside shows again what is mounted inside it. Of two rows on one place the later
    # wins: those of the homes and of deeper directories, which take more away.
    _elsewhere(table, want, hidden, homes)
    for home in homes:
        table.add(*_home(home, want, hidden))
    _mail(table, want)
    if want.ids.shifted:
        # Root's own files are not its any more: what it was granted by name needs the id map.
        # A write root is mapped already and masks what is hidden in it.
        for path in want.read:
            if not below_any(path, [*homes, *want.write]):
                table.add(*show(path, want, hidden=hidden))
    _ssh(table, want)


def _aliases(want: Want) -> list[str]:
    """Bind mounts that show a home a second time: their names are hidden like those of the home."""
    found = [alias for _, alias in mountinfo.aliases(want.mounts, want.homes)]
    return [alias for alias in found if not below_any(alias, [*PRIVATE, *want.write, *want.homes])]


def _home(home: str, want: Want, hidden: tuple[Hidden, ...]) -> list[Row]:
    gone = [item.path for item in hidden if item.why == "hide"]
    if home in gone:
        return [rows.tmpfs(home, mode="0700", size_bytes=memory_budget(want.ram_bytes) // 8)]
    if below_any(home, gone):
        return []  # hidden with the directory around it
    idmap, owner = want.ids.shifted, owner_of(home)
    inside = within(hidden, home, tuple(h for h in want.homes if h != home and is_below(h, home)))
    if not inside and not idmap and not below_any(home, list(PRIVATE)):
        return []  # the view of the root shows it as it is
    return _overlay(home, inside, want, idmap=idmap, owner=owner)


def _elsewhere(table: Table, want: Want, hidden: tuple[Hidden, ...], homes: list[str]) -> None:
    """Hidden names outside the home: one overlay over each parent directory."""
    grouped: dict[str, list[Hidden]] = {}
    for item in hidden:
        if below_any(item.path, homes) or below_any(item.path, list(PRIVATE)):
            continue
        if below_any(item.path, list(want.write)):
            continue  # masked there, as a guard
        parent = os.path.dirname(item.path)
        if parent == "/":
            if os.path.lexists(item.path):
                table.add(rows.mask(item.path, is_dir=os.path.isdir(item.path)))
        elif os.path.isdir(parent):
            grouped.setdefault(parent, []).append(item)
    for parent, items in sorted(grouped.items()):
        idmap, owner = idmap_of(parent, want)
        table.add(*_overlay(parent, items, want, idmap=idmap, owner=owner))


def _mail(table: Table, want: Want) -> None:
    """Local mail lies outside the home and holds tokens of password resets like the home's."""
    places = dict.fromkeys(os.path.realpath(path) for path in MAIL if os.path.isdir(path))
    want.witness.saw(*MAIL)
    table.add(*(rows.mask(path, is_dir=True) for path in places
                if want.guarded and not below_any(path, [*want.write, *want.read, *want.homes])))


def _ssh(table: Table, want: Want) -> None:
    """ssh refuses included system files of an owner who is neither root nor the caller.

    In a user namespace root's files belong to nobody; the copies belong to the caller.
    """
    want.witness.saw("/etc/ssh", "/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d")
    files = accounts.ssh_config_files()
    if files and any(name.startswith("ssh_config.d/") for name in files):
        table.add(rows.tmpfs("/etc/ssh", size_bytes=1 << 20))
        table.add(*(rows.file(f"/etc/ssh/{name}", text) for name, text in sorted(files.items())))


def reads(table: Table, want: Want, hidden: tuple[Hidden, ...], paths: Iterable[str]) -> None:
    """Read grants inside private places (a grant below /tmp or /run is hidden otherwise)."""
    for path in paths:
        if below_any(path, list(PRIVATE[:3])) and not below_any(path, list(want.write)):
            table.add(*link_or_show(path, want, hidden))


def link_or_show(path: str, want: Want, hidden: tuple[Hidden, ...]) -> list[Row]:
    """A symbolic link stays one on a private file system; what it leads to has a row of its own."""
    if os.path.islink(path):
        return [rows.symlink(path, os.readlink(path))]
    return show(path, want, hidden=hidden)


def spellings(table: Table, want: Want, links: dict[str, str]) -> None:
    """Granted paths that are symbolic links on the host, and HOME spelled through one.

    In the host's view they exist; on a private file system the link is made again.
    """
    spelled = os.path.normpath(want.env.get("HOME", want.home))
    if spelled.startswith("/") and spelled != want.home:
        parent, name = os.path.split(spelled)
        links = {**links, os.path.join(os.path.realpath(parent), name): want.home}
    visible = [row["target"] for row in table.rows if row["kind"] in ("bind", "overlay") and row["target"] != "/"]
    for place, real in sorted(links.items()):
        private = want.strict or below_any(place, list(PRIVATE[:3]))
        if private and place != real and not below_any(place, [*visible, *want.write]) \
                and place not in table.targets():
            table.add(rows.symlink(place, real))
