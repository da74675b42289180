"""Names that must not exist in the box: credentials, own state, what the caller hides.

Owns: turning the reviewed list into canonical host paths, and a hidden path into rows for each
place it would be visible through: an overlay where the view is read-only (the name stays away
whether it exists, appears or is replaced), a mask inside a write root. Fails closed: where the
home lies behind symbolic links both spellings lead to the hidden object. Read next: ``guards.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.errors import Refused
from stockade.frozen import NamedTuple
from stockade.light import Iterable, Iterator, Mapping
from stockade.plan import mountinfo, own
from stockade.plan.want import Want, below_any, is_below
from stockade.plan.witness import Witness
from stockade.rules.load import Entry, load_list
from stockade.rules.match import expanded, is_pattern, matches
from stockade.rules.moves import XDG, locations

OWN = ("/proc", "/dev")  # a box cannot be without them, and the host's are not shown
COVERED = ("/proc/", "/run/", "/dev/", "/tmp/")  # private in every box: what lies there is not seen
_XDG_NAMES = frozenset(name for name, _ in XDG)
_UNREAD: Mapping[str, bool] = {}


class Hidden(NamedTuple):
    """One name to hide. ``keep``: the directory stays, with only these names in it.

    ``shown``: granted paths inside it. A grant of one file must not show the store around it, so
    the directory stays as well, empty but for them. ``there``: it exists, or nobody has looked.
    A named tuple: a start makes five hundred.
    """

    path: str
    why: str
    keep: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    there: bool = True

    @property
    def open(self) -> bool:
        """True when something inside stays visible."""
        return bool(self.keep or self.shown)


class Walk:
    """Finds names below a directory by listings, each read once.

    The list has hundreds of names in a few directories; one listing answers for all of them. A
    name whose parent is missing stands for its topmost missing ancestor: one name to hide, and
    whatever appears there later is hidden as well.
    """

    __slots__ = ("_listings", "_witness", "absent", "links")

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._listings: dict[str, Mapping[str, bool] | None] = {}
        self.absent: set[str] = set()  # names that were looked for and are not there
        self.links: dict[str, str] = {}  # a listed name that is a symbolic link -> what it leads to

    def listing(self, directory: str) -> Mapping[str, bool] | None:
        """Return name -> is a symbolic link; None when it is no readable directory."""
        if directory not in self._listings:
            # Before it is read: what changes in between is a change. A name that becomes a symbolic link later
            # leads to an object nobody hid yet.
            self._witness.saw(directory)
            try:
                with os.scandir(directory) as entries:
                    self._listings[directory] = {entry.name: entry.is_symlink() for entry in entries}
            except OSError:
                self._listings[directory] = None
        return self._listings[directory]

    def find(self, directory: str, name: str) -> list[str]:
        """Return canonical places of a relative name or pattern; a final link's target as well."""
        first, _, rest = name.partition("/")
        if not is_pattern(name):
            return self.named(directory, name)
        names = self.listing(directory)
        if names is None:
            return []
        if not is_pattern(first):
            return self._at(directory, first, rest, names)
        return [path for each in names if matches(each, first) for path in self._at(directory, each, rest, names)]

    def named(self, directory: str, name: str) -> list[str]:
        """Do the same for a name that is no pattern: nearly all of the list, and few of them are there."""
        names = self._listings.get(directory, _UNREAD)
        if names is _UNREAD:
            names = self.listing(directory)
        if names is None:
            return []
        first, _, rest = name.partition("/")
        if first in names:
            return self._at(directory, first, rest, names)
        path = f"{directory}/{first}" if directory != "/" else f"/{first}"
        self.absent.add(path)
        return [path]

    def _at(self, directory: str, name: str, rest: str, names: Mapping[str, bool]) -> list[str]:
        path = f"{directory}/{name}" if directory != "/" else f"/{name}"
        is_link = names.get(name)
        if is_link is None:
            self.absent.add(path)
            return [path]
        real = os.path.realpath(path) if is_link else path
        if rest:
            return self.find(real, rest)
        if real == path or not os.path.lexists(real):
            return [path]
        self.links[path] = real
        return [path, real]


def collect(want: Want) -> tuple[Hidden, ...]:
    """Return what this request hides, outermost first, without what a grant names."""
    return survey(want)[0]


def survey(want: Want) -> tuple[tuple[Hidden, ...], str | None]:
    """Return what this request hides, and a grant that opens a store, if one does.

    A profile's own grants do not count as such: a reviewed profile shows its tool's own sign-in.
    """
    walk = Walk(want.witness)
    found = [Hidden(path=_topmost_missing(path), why="own state")
             for path in own.state_homes(want.homes, want.env, want.state_home)]
    opened = None
    if want.guarded:
        ears = _Ears(want, walk)
        stores = _stores(want, walk)
        for item in (*stores, *_aliases(stores, want)):
            if not ears.concerns(item):
                found.append(item)
                continue
            opened = opened or ears.opened_by(item)
            heard = ears.hear(item)
            if heard is not None:
                found.append(heard)
    # A caller's own --hide beats every grant, so it is added after the grants were heard.
    for path in want.hide:
        if path == "/" or below_any(path, OWN):
            raise Refused("grant_unsupported", f"hide {path}: every box has {' and '.join(OWN)} of its own and a root",
                          hint="name what is to be hidden below it; strict shows no more than it needs")
    found.extend(Hidden(path=spelling, why="hide") for path in want.hide for spelling in spellings(path))
    found.extend(_aliases([item for item in found if item.why in ("own state", "hide")], want))
    return _outermost(found), opened


def _topmost_missing(path: str) -> str:
    """Return the path, or of a missing one the first part that is missing: what appears there is hidden too."""
    missing = path
    for above in (path, *parents(path)):
        if os.path.lexists(above):
            return missing
        missing = above
    return path


def _stores(want: Want, walk: Walk) -> list[Hidden]:
    entries = load_list("credentials")
    names = {name for entry in entries for name in entry.env} | {name for name, _ in XDG}
    want.witness.read_env(want.env, names)
    moved = frozenset(name for name in names if want.env.get(name))
    any_moves = bool(moved & _XDG_NAMES)
    found: dict[str, Hidden] = {}
    for entry in entries:
        paths = [path for home in want.homes for path in _in_home(entry, home, walk)]
        if any_moves or not moved.isdisjoint(entry.env):
            paths = [path for path in (*paths, *_moved(entry, want)) if not _is_home(path, want)]
        for path in paths:
            # Of two entries for one name the one that keeps nothing wins.
            known = found.get(path)
            if known is None or (known.keep and not entry.keep):
                found[path] = Hidden(path, entry.id, entry.keep, (), path not in walk.absent)
    return list(found.values())


class _Ears:
    """The grants of a request, against which each hidden name is heard."""

    __slots__ = ("_asked", "_links", "_near", "_places")

    def __init__(self, want: Want, walk: Walk) -> None:
        self._places = dict.fromkeys((*want.read, *want.write, *(cache.path for cache in want.caches)))
        self._asked = want.asked
        self._links = walk.links
        self._near = {*self._places, *(parent for path in self._places for parent in parents(path))}

    def concerns(self, item: Hidden) -> bool:
        """Tell whether any grant is at or below the name; nearly always none is."""
        return item.path in self._near or self._links.get(item.path) in self._near

    def _inside(self, item: Hidden) -> list[str]:
        """Grants at or below the name. Grants are real paths; the name may be a link to its store."""
        real = self._links.get(item.path, item.path)
        if real in self._places:
            return [real]
        return [path for path in self._places if path.startswith(real + "/")]

    def hear(self, item: Hidden) -> Hidden | None:
        """A grant of exactly this name shows it (None); a grant inside it shows that place alone."""
        inside = self._inside(item)
        if not inside:
            return item
        real = self._links.get(item.path, item.path)
        if inside == [real]:
            return None
        return item._replace(shown=tuple(item.path + path[len(real):] for path in inside))

    def opened_by(self, item: Hidden) -> str | None:
        """Return a grant that shows some of a store, beyond the names that always stay visible."""
        real = len(self._links.get(item.path, item.path))
        return next((path for path in self._inside(item) if path in self._asked
                     and not (item.keep and kept_name(path[real + 1:].split("/")[0], item.keep))), None)


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a canonical path, innermost first, without ``/``."""
    while path := path.rpartition("/")[0]:
        yield path


def _in_home(entry: Entry, home: str, walk: Walk) -> list[str]:
    if entry.kind != "glob":
        return walk.named(home, entry.path)
    return [path for name in (entry.path, *entry.usual) for path in walk.find(home, name)]


def _moved(entry: Entry, want: Want) -> list[str]:
    """Places of an entry that a variable of the caller's names."""
    places = locations(entry, want.home, want.env)[1:]
    return [spelling for place in places for path in _expanded(place) for spelling in spellings(path)]


def _expanded(place: str) -> list[str]:
    # A directory of that very name may be meant: nothing fits it as a pattern, then.
    return (expanded(place) if is_pattern(place) else []) or [place]


def _is_home(path: str, want: Want) -> bool:
    """A variable that names the home itself must not make the whole home vanish."""
    return any(home == path or home.startswith(path.rstrip("/") + "/") for home in want.homes)


def spellings(path: str) -> list[str]:
    """Return the canonical place of the name, and what a final symlink there leads to."""
    parent, name = os.path.split(os.path.normpath(path))
    place = os.path.join(os.path.realpath(parent), name)
    found = [place]
    if os.path.islink(place):
        target = os.path.realpath(place)
        if os.path.lexists(target):
            found.append(target)
    return found


def _aliases(found: Iterable[Hidden], want: Want) -> list[Hidden]:
    """Bind mounts that show a hidden name, or something inside one, a second time under another path."""
    devices = [mount.device for mount in want.mounts]
    if len(set(devices)) == len(devices):
        return []  # no file system is mounted twice
    items = {item.path: item for item in found}
    # Whole, not by keep: nobody looks for a public key under a second spelling.
    result = [Hidden(path=alias, why=items[path].why) for path, alias in mountinfo.aliases(want.mounts, items)]
    for point, path in mountinfo.sources(want.mounts):
        outer = next((items[above] for above in parents(path) if above in items), None)
        if outer is not None and point != path and not stays(path, outer):
            result.append(Hidden(path=point, why=outer.why))
    # What lies in a private place is seen where a grant shows it again.
    shown = (*want.write, *want.read)
    return [item for item in result if not item.path.startswith(COVERED) or below_any(item.path, shown)
            or any(is_below(path, item.path) for path in shown)]


def _outermost(found: Iterable[Hidden]) -> tuple[Hidden, ...]:
    """Drop duplicates and names inside a directory that is hidden, unless they lie in what it still shows."""
    first: dict[str, Hidden] = {}
    for item in found:
        known = first.get(item.path)
        if known is None or (known.open and not item.open):
            first[item.path] = item
    result: list[Hidden] = []
    around: list[Hidden] = []  # the hidden directories above the present name, innermost last
    # With the separator lowest, everything below a directory follows it at once.
    for path in sorted(first, key=lambda text: text.replace("/", "\0")):
        while around and not path.startswith(around[-1].path + "/"):
            around.pop()
        if not around or stays(path, around[-1]):
            around.append(first[path])
            result.append(first[path])
    return tuple(result)


def stays(path: str, outer: Hidden) -> bool:
    """Tell whether a path inside a hidden directory is still visible there."""
    if below_any(path, outer.shown):
        return True
    return bool(outer.keep) and kept_name(path[len(outer.path) + 1:].split("/")[0], outer.keep)


def kept_name(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a name of a keep-directory stays visible; ``!pattern`` takes it back."""
    shown = False
    for pattern in patterns:
        if pattern.startswith("!"):
            shown = shown and not matches(name, pattern[1:])
        elif matches(name, pattern):
            shown = True
    return shown


def kept_children(item: Hidden) -> list[str]:
    """Return existing children of a keep-directory that stay visible: files and directories only."""
    if not item.keep:
        return []
    try:
        names = sorted(os.listdir(item.path))
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(item.path, name)
        if kept_name(name, item.keep) and _plain(path):
            found.append(path)
    return found


def _plain(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def within(hidden: Iterable[Hidden], root: str, but: tuple[str, ...] = ()) -> list[Hidden]:
    """Return hidden names strictly inside ``root`` and in none of ``but``."""
    inside = root.rstrip("/") + "/"
    return [item for item in hidden if item.path.startswith(inside) and not (but and below_any(item.path, but))]
