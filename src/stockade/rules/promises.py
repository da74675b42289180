"""The promises: the single source of what each tier means.

Owns: the 19 promise ids, the tiers that require them, the rows that count only under
namespaces, the reviewed lists they speak of, and the launcher facts that keep them. Documents,
``explain``, receipts and attack tests are made from this table or checked against it.
Fails closed: a promise none of whose alternatives was applied whole is not kept.
Read next: ``docs/tiers.md`` (made from here), ``stockade.rules.load`` (the lists).
"""

from __future__ import annotations

from stockade.errors import ConfigError, nearest
from stockade.frozen import dataclass
from stockade.light import Iterable, MappingProxyType
from stockade.rules.tiers import ALL_TIERS, Tier

Alternatives = tuple[tuple[str, ...], ...]

# Every fact a launch can prove. A name outside this set in `needs` could never come true.
FACTS = frozenset({
    "userns", "mntns", "pidns", "ipcns", "utsns", "cgroupns", "netns",
    "mounts", "overlay_home", "snapshot_home", "guards", "proc_fresh", "proc_covers",
    "dev_private", "init_protected", "fds_closed", "env_filtered", "no_new_privs", "keyring",
    "caps_empty", "bounding_empty", "landlock_fs", "landlock_signal", "landlock_abstract",
    "rlimits", "seccomp", "persistence_watch", "supervised", "terminal_filter",
    "sockets_covered", "ids_shifted",
    # Without namespaces: a Landlock domain of the box's own, and what its filter refuses.
    "domain", "ipc_refused", "unix_refused", "net_refused", "keyring_refused",
})

_ALL = frozenset(ALL_TIERS)
_GUARDED_UP = frozenset({Tier.guarded, Tier.strict})
_STRICT = frozenset({Tier.strict})
_NONE: frozenset[Tier] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One testable statement.

    ``needs``: alternatives, best first; each is a set of facts that together keep the promise,
    so a longer alternative names a second mechanism that holds on its own. ``net_needs``:
    alternatives that replace ``needs`` for that network mode. ``ns``: tiers at which the row
    counts only under the namespaces backend. ``notes``: what a tier adds to the statement.
    """

    id: str
    statement: str
    tiers: frozenset[Tier]
    needs: Alternatives
    ns: frozenset[Tier] = _NONE
    lists: tuple[str, ...] = ()
    net_needs: tuple[tuple[str, Alternatives], ...] = ()
    notes: tuple[tuple[Tier, str], ...] = ()

    @property
    def needs_namespaces(self) -> bool:
        """True when the row counts only under namespaces."""
        return bool(self.ns)

    def needs_for(self, net: str) -> Alternatives:
        """Return the alternatives under network mode ``net`` (``host`` or ``none``)."""
        return dict(self.net_needs).get(net, self.needs)


def _with_home(*facts: str) -> Alternatives:
    # `mounts` means every row was placed, so it is enough alone (strict has no home overlay);
    # the longer alternatives only say how names in the home were hidden.
    return ((*facts, "overlay_home"), (*facts, "snapshot_home"), facts)


# Rules that are the whole view, from which nothing has to be taken away.
_RULES = ("domain", "landlock_fs", "fds_closed")


def _with_second(second: str, *facts: str) -> Alternatives:
    return ((*facts, second), facts)


PROMISES: tuple[Promise, ...] = (
    Promise(
        id="env.secrets",
        statement="secret variables are absent unless granted by name, and cannot be read through "
                  "/proc of any process of the box",
        tiers=_ALL, lists=("env-secrets", "token-shapes", "env-allow"),
        # init_protected: the box's init starts with the caller's whole environment in memory.
        needs=(("env_filtered", "init_protected"),),
        notes=((Tier.standard, "filtered by name"),
               (Tier.guarded, "also by value: known token shapes"),
               (Tier.strict, "allow-list and profile"))),
    Promise(
        id="env.injection",
        statement="variables that make a program load foreign code are absent unless granted",
        tiers=_ALL, lists=("env-injection",), needs=(("env_filtered",),)),
    Promise(
        id="fs.own_state",
        statement="keys, sockets and app secrets of the state home cannot be read; the state home, "
                  "configuration, installed package, launcher and the caller's import path cannot be "
                  "changed, by any path or by rename of a parent",
        tiers=_ALL, needs=(*_with_home("mounts", "guards"), _RULES)),
    Promise(
        id="fs.write_roots",
        statement="content, names and sizes outside the write roots, the private temp, granted caches "
                  "and files that a profile copies back cannot be changed",
        tiers=_ALL, needs=(*_with_second("landlock_fs", "mounts", "fds_closed"), _RULES)),
    Promise(
        id="fs.metadata",
        statement="nor modes, owners, times and attributes",
        tiers=_ALL, ns=_ALL, needs=(("mounts", "fds_closed"),)),
    Promise(
        id="fs.credentials",
        statement="the listed credential stores cannot be read, whether they exist, appear later, or "
                  "are replaced by the host meanwhile",
        tiers=_GUARDED_UP, lists=("credentials",), needs=(*_with_home("mounts", "fds_closed"), _RULES)),
    Promise(
        id="fs.persistence",
        statement="listed places whose change runs code later cannot be changed or swapped when they "
                  "exist at start, also inside a write root; new ones are reported when the box ends",
        tiers=_GUARDED_UP, lists=("persistence",),
        # Without mounts only where no write root holds such a place; else the plan says not_kept.
        needs=(("mounts", "guards", "persistence_watch"), (*_RULES, "persistence_watch"))),
    Promise(
        id="fs.home",
        statement="the home is deny-by-default: only granted paths can be read, listed or changed",
        tiers=_STRICT, needs=(*_with_second("landlock_fs", "mounts", "fds_closed"), _RULES)),
    Promise(
        id="fs.system",
        statement="outside the home only the operating system, toolchains and granted paths",
        tiers=_STRICT, lists=("system", "toolchains"),
        needs=(*_with_second("landlock_fs", "mounts", "fds_closed"), _RULES)),
    Promise(
        id="fs.workspace_secrets",
        statement="files such as .env at the top of each root are unreadable unless granted",
        tiers=_STRICT, lists=("workspace-secrets",),
        # guards: a mask is a mount on a name of the host and would go when the host renames over it.
        needs=(("mounts", "guards"), _RULES)),
    Promise(
        id="proc.no_control",
        statement="host processes and the box's own init cannot be signalled, traced, or their memory, "
                  "environment and descriptors read",
        tiers=_ALL,
        # seccomp: of what Landlock does not look at, limits of other processes are refused by the filter.
        needs=(*_with_second("landlock_signal", "pidns", "proc_fresh", "init_protected"),
               ("domain", "landlock_signal", "init_protected", "seccomp"))),
    Promise(
        id="proc.invisible",
        statement="host processes cannot be listed, their command lines read, or re-prioritised",
        tiers=_ALL, ns=_ALL, needs=(("pidns", "proc_fresh"),)),
    Promise(
        id="proc.reaped",
        statement="when the command ends or the supervisor dies, every process of the box is dead",
        tiers=_ALL, needs=(("pidns", "supervised"), ("domain", "supervised"))),
    Promise(
        id="ipc.isolated",
        statement="SysV and POSIX IPC, shared memory and abstract sockets of the host are out of reach",
        tiers=_ALL,
        needs=(("ipcns", "dev_private", "netns", "landlock_abstract"),
               ("ipcns", "dev_private", "netns"),
               ("ipcns", "dev_private", "landlock_abstract"),
               ("domain", "ipc_refused", "landlock_abstract", "landlock_fs"))),
    Promise(
        id="ipc.sockets",
        statement="listed control sockets, and path sockets under home, /run, /tmp and in directories "
                  "that hold one at start, are out of reach unless granted",
        tiers=_ALL, lists=("sockets", "grants"),
        needs=(("mounts", "sockets_covered", "fds_closed"), ("domain", "unix_refused", "fds_closed")),
        notes=((Tier.standard, "ssh-agent is granted by default"),
               (Tier.guarded, "ssh-agent is granted by default"),
               (Tier.strict, "every path socket outside the grants"))),
    Promise(
        id="kernel.surface",
        statement="no new privileges, capabilities, namespaces, mounts, setuid bits or keyrings; no bpf, "
                  "perf, io_uring, userfaultfd and other calls that widen the kernel's attack surface",
        tiers=_ALL, lists=("voiding",),
        # no_new_privs alone keeps file capabilities and setuid away where bounding cannot be dropped.
        needs=(*_with_second("bounding_empty", "no_new_privs", "caps_empty", "keyring", "seccomp"),
               ("domain", "no_new_privs", "caps_empty", "keyring_refused", "seccomp"))),
    Promise(
        id="tty.injection",
        statement="nothing can be typed into the shared terminal (TIOCSTI, TIOCLINUX or equivalent)",
        tiers=_ALL, needs=(("terminal_filter",),)),
    Promise(
        id="net.policy",
        statement="the network is exactly what the receipt says; no resolver or name-service socket of "
                  "the host unless it is the host's network",
        tiers=_ALL, needs=(("netns", "mounts"), ("domain", "net_refused")),
        net_needs=(("none", (("netns", "mounts"), ("domain", "net_refused"))),
                   ("host", (("mounts",), ("domain", "unix_refused"))))),
    Promise(
        id="limits",
        # A process that asks the kernel for more gets ENOMEM, EAGAIN or EMFILE, and nobody else is told.
        statement="core dumps are off; process, descriptor, cpu-time, memory and wall limits hold as "
                  "requested: more is refused to the process that asks, which the receipt cannot know, or the box is "
                  "ended with a typed outcome",
        tiers=_ALL, needs=(("rlimits", "supervised"),)),
)

_BY_ID = MappingProxyType({p.id: p for p in PROMISES})
PROMISE_IDS = tuple(_BY_ID)


def by_id(promise_id: str) -> Promise:
    """Return the promise of that id. Raises: ConfigError ``unknown_promise``."""
    promise = _BY_ID.get(promise_id)
    if promise is None:
        raise ConfigError("unknown_promise", f"promise {promise_id!r}: expected a promise id",
                          hint=nearest(promise_id, PROMISE_IDS))
    return promise


def required(tier: Tier, *, namespaces: bool = True) -> tuple[Promise, ...]:
    """Return the promises that ``tier`` requires.

    Args: namespaces: False leaves out the rows that count only under the namespaces backend.
    """
    return tuple(p for p in PROMISES
                 if tier in p.tiers and (namespaces or tier not in p.ns))


def effective_tier(kept: Iterable[str], *, namespaces: bool = True) -> Tier:
    """Return the highest tier all of whose required promises are in ``kept``."""
    have = frozenset(kept)
    for tier in reversed(ALL_TIERS):
        if all(p.id in have for p in required(tier, namespaces=namespaces)):
            return tier
    return Tier.off
