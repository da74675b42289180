"""The manifest: every statement the suite has to show, as id, sentence and source.

Owns the ids that tests carry with ``@requirement("id")``. Fails closed: an unknown id is an
error at import, an id without a test and a test without an id fail
``tests/test_requirements.py``. What belongs to a later milestone is listed in ``DEFERRED`` with
the milestone's subject; it is neither skipped nor forgotten. Read next: ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One statement, where it comes from and, when it is for later, whose subject it is."""

    id: str
    sentence: str
    source: str
    deferred_to: str | None = None
    tiers: tuple[str, ...] = ()


ALL = ("standard", "guarded", "strict")


def _promise(promise_id: str, sentence: str, tiers: tuple[str, ...] = ALL) -> Requirement:
    return Requirement(id=promise_id, sentence=sentence, source="promise table", tiers=tiers)


def _field(field_id: str, sentence: str, source: str) -> Requirement:
    return Requirement(id=field_id, sentence=sentence, source=source)


def _later(later_id: str, sentence: str, subject: str) -> Requirement:
    return Requirement(id=later_id, sentence=sentence, source="field reports", deferred_to=subject)


PROMISES = (
    _promise("env.secrets", "secret variables are absent unless granted, also through /proc of any box process"),
    _promise("env.injection", "variables that make a program load foreign code are absent unless granted"),
    _promise("fs.own_state", "keys of the state home cannot be read; state, configuration and package cannot be changed"),
    _promise("fs.write_roots", "content, names and sizes outside the write roots cannot be changed"),
    _promise("fs.metadata", "modes, owners, times and attributes outside the write roots cannot be changed"),
    _promise("fs.credentials", "credential stores cannot be read, whether they exist, appear or are replaced", ALL[1:]),
    _promise("fs.persistence", "persistence points that exist at start cannot be changed or swapped; new ones are reported", ALL[1:]),
    _promise("fs.home", "the home is deny-by-default, also for files created later", ALL[2:]),
    _promise("fs.system", "outside the home only the operating system, toolchains and granted paths are there", ALL[2:]),
    _promise("fs.workspace_secrets", ".env and the like at the top of each root are unreadable unless granted", ALL[2:]),
    _promise("proc.no_control", "host processes and the box's own init cannot be signalled, traced or read"),
    _promise("proc.invisible", "host processes cannot be listed, their command lines read, or re-prioritised"),
    _promise("proc.reaped", "when the command ends or the supervisor dies every process of the box is dead"),
    _promise("ipc.isolated", "SysV and POSIX IPC, shared memory and abstract sockets of the host are out of reach"),
    _promise("ipc.sockets", "control sockets and path sockets of the host are out of reach unless granted"),
    _promise("kernel.surface", "no privilege, no new namespaces, mounts or dangerous calls; setuid bits cannot be made"),
    _promise("tty.injection", "no TIOCSTI, TIOCLINUX or equivalent on the shared terminal"),
    _promise("net.policy", "the network is exactly what the receipt says"),
    _promise("limits", "core dumps are off and the requested limits hold; one that ends the box does so with a typed outcome"),
)

LAUNCHER = (
    _field("launcher.fault_is_typed", "a fault in any step refuses the launch with that step's code and exit status 125", "launcher design, steps"),
    _field("launcher.refusal_runs_nothing", "after a refusal the command never ran and no launch record exists", "launcher design, receipts"),
    _field("launcher.stuck_mounts", "no start waits for a file system that does not answer: what needs it is refused, nothing else looks there", "budgets, stuck mounts"),
    _field("launcher.plan_is_verified", "an unsealed, foreign, writable or wrongly named plan is refused", "launcher design, plans"),
    _field("mechanism.without_landlock", "every promise claimed by mounts and namespaces holds with Landlock switched off", "tiers, second mechanism"),
    _field("names.alternatives", "a workspace under /tmp and a root caller with another user's checkout work and are guarded", "tiers, defaults"),
)

FIELD_A = (
    _field("A.killed_launcher_leaves_nothing", "run in an empty directory, kill -9 the launcher: no new file in the tree, home, /tmp or state home besides the log", "sandbox-runtime 139; codex 18043; KiroCrew 5776"),
    _field("A.many_spawns_leave_nothing", "after many spawns, a third killed: no leftover mount, temp file, socket, process, lock or descriptor", "KiroCrew 6263, 11789, 3150"),
    _field("A.exhaustion_is_transient", "a full temp file system, a descriptor limit or ENOMEM is typed transient, recovers by itself and is not cached", "KiroCrew 4219, 6268"),
)

FIELD_B = (
    _field("B.secret_aliases", "a secret behind a symlink, hard link, bind alias, .. through a symlink, a late name, a replaced file or a renamed parent stays hidden", "KiroCrew 646, 12641, 12123, 8795"),
    _field("B.hide_through_symlink", "a hidden path spelled through a symlinked directory does not make every command fail; a symlinked home agrees in both spellings", "claude-code 45451; KiroCrew 11028"),
    _field("B.odd_cwd", "cwd .., deleted, through /dev/fd, on a file, or the home itself has a defined answer", "sandbox-runtime 79; KiroCrew 6971, 7392"),
    _field("B.hidden_and_read_only", "a secret inside a directory that is hidden and write-protected stays unreadable", "claude-code 53209"),
    _field("B.git_layouts", "linked worktree, extensions.worktreeConfig, submodule, bare repository and a non-git directory work and are guarded", "sandbox-runtime 98; claude-code 80278; codex 37318"),
    _field("B.right_on_file", "a directory-only right on a file does not fail the start; rename across directories of one write root works", "landrun 15, 48; nono 96"),
    _field("B.move_into_guard", "moving something onto a guarded name or swapping a guarded directory by rename fails", "cplt 455; pmg 446"),
    _field("B.hard_link_backups", "backups of ordinary files by hard link do not stop spawns", "KiroCrew 10944"),
    _field("B.host_renames_over", "the host renames over a hidden or guarded file while the box lives: it stays hidden, the guard is put back", "measured"),
    _field("B.git_without_hooks", "git layouts that run foreign code without hooks are refused or reported", "measured"),
)

FIELD_C = (
    _field("C.init_is_out_of_reach", "environ, mem and ptrace of the box's init fail from inside; kill(0, SIGSTOP) leaves the caller's pipeline and the supervisor running", "measured"),
    _field("C.descriptors_closed", "an open descriptor of the parent is not readable inside, also when close_range is refused", "codex descriptor leak; nsjail 297"),
    _field("C.no_planted_code", "LD_PRELOAD, sitecustomize, .pth, user site, struct.py in cwd or a planted gcc run nothing before or outside confinement", "KiroCrew 2602, 7168"),
    _field("C.big_environment", "5,000 variables, a 100 kB value and non-UTF-8 bytes in names pass or are refused typed", "measured"),
    _field("C.tiocsti_high_bits", "TIOCSTI and TIOCLINUX fail also with high bits set in the request", "bubblewrap 142; CVE-2019-10063"),
    _field("C.terminal_as_without", "Ctrl-C, Ctrl-Z, resize, job control and no terminal behave as without the box; signal deaths and 0 are kept", "bubblewrap 369; nono 1739; KiroCrew 21"),
    _field("C.odd_callers", "a caller that ignores SIGCHLD, whose spawning thread exits or which dies early leaves a right answer or nothing", "bubblewrap 692, 705, 633"),
    _field("C.starved_callers", "under low limits of the caller (processes, file size, descriptors, stack, memory) a box is whole or refused typed, and the next one works", "measured"),
    _field("C.odd_places", "PATH, HOME or a working directory that is empty, missing, relative, foreign or unreadable widens nothing and runs nothing planted", "measured"),
    _field("C.closed_streams", "a caller whose standard streams are closed gets a whole box, or a typed refusal, and the command gets no descriptor of the launcher", "measured"),
    _field("C.kernel_side_doors", "a datagram socketpair aimed at a host path and openat2 with a setuid mode fail", "measured"),
)

DECISION = (
    _field("decision.carve_outs", "a run without a box needs a proven installed program or the operator's word, and neither works where a box can be made, under a floor, after a shortage or in a foreign sandbox", "decision table, D3 and D4"),
    _field("decision.inside", "inside a box what it has is passed through, what it lacks is refused by name, and less than asked needs a word", "decision table, D7 to D13"),
)

FIELD_D = (
    _field("D.obstacles", "each obstacle that a host has against boxes has its class, cause and remedy, and doctor's status says yes, no or cannot tell", "field failures, host obstacles; KiroCrew 1137, 9765, 8629; codex 15434; nsjail 236"),
    _field("D.older_landlock", "with an older Landlock or none, namespaces alone keep every tier without a network; with the host's the one promise that is lost is named", "tiers, backends; landrun 11"),
)

END = (
    _field("end.quarantine", "new persistence points are moved away where that is the class's default, and nothing else is; a crash or a race loses none of them", "tiers, new persistence points"),
    _field("end.fail", "with --on-persistence fail a run that leaves persistence points, or may have, ends with a typed outcome and status 125", "interfaces, options"),
    _field("end.journal", "a box that was killed is compared by the next launch on its root, and its record is written", "tiers, new persistence points"),
    _field("end.copyback", "a file that its tool saves by rename goes into the private home and comes back whole, or its version is kept aside", "tiers, state files"),
    _field("end.discarded", "files written to the private home are counted and the first ten named, however the command shaped them", "tiers, state files"),
)

FIELD_F = (
    _field("F.marker_does_not_disable", "a forged marker in the environment does not disable the sandbox", "KiroCrew 277"),
    _field("F.never_silently_weaker", "a tier the host cannot keep is refused and names the missing promises", "KiroCrew 691"),
    _field("F.probe_agrees", "probe and run agree, also from another process", "KiroCrew 2652, 8747, 11073"),
    _field("F.where_am_i", "a box is known by kernel facts that nobody else makes; forged, copied and inherited marks are unknown or foreign", "decision, step 4; KiroCrew 277"),
    _field("F.probe_of_ones_own", "an answer found under a filter, in a namespace or below another root is given to nobody who is confined otherwise", "decision, step 5"),
    _field("F.answer_taken_back", "a start that the kernel refuses against an answer of the probe drops it, says so, and the next one asks", "decision, step 5"),
    _field("F.check_agrees", "what check says of a path is what the kernel answers in the box, for every mode and tier", "design, 14.5"),
    _field("F.open_stays_inside", "open returns what the box would use under that name, also while names are swapped", "design, 14.6"),
    _field("F.missing_sandbox_is_named", "a missing launcher is said plainly and never reads as a missing command", "KiroCrew 638"),
    _field("F.policy_fails_closed", "an invalid policy refuses every request; a floor beats every opt-in; an empty allow-list denies", "KiroCrew 3615, 3168; cplt 372"),
    _field("F.unknown_names", "an unknown option, profile or tier is an error that names the nearest known one", "measured"),
    _field("F.forged_refusal", "a child that prints the launcher's refusal text and exits 125 is not believed", "KiroCrew"),
)

INSTALL = (
    _field("install.wheel", "the wheel installs in an empty home and works at once; it names only platforms that its launcher runs on", "design, packaging"),
    _field("install.elsewhere", "without a launcher every request is a typed refusal; a build that cannot make one makes no wheel", "design, packaging"),
    _field("install.tools", "uv, uvx and pipx install the wheel into an empty home, and a box cannot change that install", "design, packaging"),
)

LEARN = (
    _field("learn.sees_what_strace_sees", "the names, calls and results that the tracer writes are those that strace sees in the same box", "learn"),
    _field("learn.unnoticed", "a watched program sees the same signals, stops, ends, threads and errors as without", "learn"),
    _field("learn.profile_works", "a run with the learned profile works, and the profile holds no more than the run asked for", "learn"),
    _field("learn.never_proposed", "credential stores, places that run code later and control sockets are told apart and never proposed", "learn"),
    _field("learn.save_loses_nothing", "an existing profile is joined without losing a line, and one that cannot be read refuses before the run", "learn"),
    _field("learn.ends_as_the_command", "learn ends as the command ended, 125 is Stockade's own failure, and a failed run names learn", "learn"),
    _field("learn.promises_hold", "a watched box keeps the promises of the same box unwatched, and one that cannot be watched runs nothing", "learn"),
)

NEST = (
    _field("nest.strict_in_standard", "strict asked inside standard is a real narrower box, and its receipt says so", "nested boxes"),
    _field("nest.only_narrows", "whatever is asked from inside, the outer box's mounts, network, rules and promises hold", "nested boxes"),
    _field("nest.word_of_a_plan", "what a plan that was made inside promises beyond the outer box is told to its maker alone, as its own word", "nested boxes"),
    _field("nest.hostile_requests", "bytes, plans, descriptors and floods from inside are refused by type, and the box goes on", "nested boxes"),
    _field("nest.ends_with", "the end of the client, of the outer command or of its supervisor is the end of what is inside", "nested boxes"),
    _field("nest.terminal", "terminal, interrupts, suspending and hanging up behave in a box inside a box as without one", "nested boxes"),
    _field("nest.signals", "signals, end status, time limits and the whole of the API go through a box inside a box", "nested boxes"),
    _field("nest.acceptance", "strict typed in a box as a person does reads no secret, moves no hook, and ordinary work goes on", "nested boxes"),
    _field("nest.deep", "twenty boxes stand inside each other", "nested boxes"),
)

PROVE = (
    _field("prove.nothing_broken", "every promise of every tier is attacked through the public interface on this machine, and none is broken", "prove"),
    _field("prove.bare_first", "an attack that does not work without a box proves nothing and is never called kept", "prove"),
    _field("prove.finds_broken", "a box that lets an attack through is called broken where its receipt says kept, and waived where it says so", "prove"),
    _field("prove.leaves_nothing", "no file, process or shared object stays, also when the proof is interrupted or killed", "prove"),
    _field("prove.against", "the same attacks are shown in another sandbox; what cannot be compared or proved is refused by name", "prove"),
    _field("prove.without_namespaces", "boxes of backend landlock are attacked alike; where there is none that is said by its code", "prove"),
    _field("prove.nested", "boxes that the supervisor of another builds inside it are attacked alike, and where it builds none that is said", "prove, nested"),
    _field("prove.cannot_tell", "where the attacks cannot be made the status is 2, never 0", "prove"),
)

CACHES = (
    _field("caches.modes", "a cache is kept per identity, or lasts for one box, or there is none; never the user's own changes", "tiers, caches"),
    _field("caches.limit", "over the size limit the least recently used cache goes, never one that a live box has mounted", "tiers, caches"),
)

AGENTS = (
    _field("agents.own_sign_in", "a coding agent works at guarded and strict, and its commands, hooks and servers get its own sign-in and nobody else's", "agents, profiles"),
    _field("agents.later_sessions", "what an agent runs in a later or live session outside cannot be changed from its box unless that is allowed", "agents, profiles"),
    _field("agents.inner_sandbox", "a program with a sandbox of its own works with it off, and that is said", "platforms, inner sandboxes"),
)

FIELD_E = (
    _field("E.packages", "package managers do their work: hard links, lifecycle scripts, build isolation, hooks that a package installs", "KiroCrew 1339, 8653; sandbox-runtime"),
    _field("E.builds", "make -j, compilers behind a cache, build daemons on loopback and pools of test workers work, and end with their box", "KiroCrew 8104; field reports"),
    _field("E.memory", "a JVM with 2,000 threads, multiprocessing with semaphores and shared memory, and a data base with a write-ahead log work", "KiroCrew 5584; measured"),
    _field("E.unpacked", "programs that unpack native libraries into the temp directory load them", "measured"),
    _field("E.git", "git's everyday commands do all of their work, or one line says what was lost and which grant brings it back", "design, git"),
    _field("E.keys", "git over ssh with an agent and commits signed by a granted agent work while the private keys stay out of the box", "codex; sandbox-runtime"),
    _field("E.files", "modes, links, times and setgid directories are kept by tar, cp and git; the temp directory may be on disk", "design, temp and filter"),
    _field("E.streams", "standard streams that are files can be opened again by their names below /dev", "measured"),
    _field("E.servers", "a data base server and a debugger on loopback start, answer and stop", "field reports"),
    _field("E.toolchains", "toolchains of the home are found by their command through shims, proxies, links, environments and shebangs, and nothing beside them", "design, toolchains"),
    _field("E.terminal_programs", "editors, shells in scripts, recorders and a multiplexer behave as without the box, suspended ones too", "field reports"),
    _field("E.browser", "Chromium headless and Playwright work with the browser's own sandbox off", "measured"),
    _field("E.grants", "a grant that gives promises away is refused until that is accepted; another name of a credential is the same credential", "design, voiding grants and aliases"),
)

ALONE = (
    _field("alone.chosen", "where namespaces are refused an ordinary user's box is made of Landlock and a filter, and its receipt says so", "tiers, backends"),
    _field("alone.promises", "without namespaces each tier keeps every promise that needs none, and renames work", "tiers, backends"),
    _field("alone.lost", "what no rule can keep inside a write root is refused by name unless it is accepted, and then not called kept", "tiers, backends"),
    _field("alone.reaped", "one signal ends a fork bomb, also when two of supervisor, first process and keeper are killed at once", "launcher, tighten"),
    _field("alone.refused", "root callers, older kernels, sockets and plans that need a mount are refused by type", "tiers, backends"),
    _field("alone.kept", "a start without namespaces gives the answer of an earlier one, for ten minutes and to callers confined alike", "tiers, backends"),
    _field("alone.layers", "the sixteenth layer is used and the seventeenth refused, with nothing started", "decision, nested"),
)

AUDIT = (
    _field("audit.complete", "every start, end and refusal is in the log once, in one chain", "audit log"),
    _field("audit.refused", "a refusal that no launcher wrote says who asked for what; a question leaves no record", "audit log"),
    _field("audit.damage", "a change of the log is named by its kind and place", "audit log"),
    _field("audit.inside", "a box reads and writes nothing of the log; what it says is of the inside", "audit log"),
    _field("audit.unsigned", "a log without signed heads says so, and what others can then not check", "audit log"),
)

DEFERRED = (
    _later("later.nest.foreign", "already inside another sandbox the answer is real or typed", "nested boxes"),
    _later("later.D.host_obstacles", "AppArmor's restriction and a stuck mount are told apart on hosts that have them", "host obstacles"),
    _later("later.G.audit", "policy requires an event of the log; trust, policy and configuration changes are events", "audit"),
    _later("later.H.mcp", "MCP servers of every bad manner are wrapped, probed and reported truthfully", "MCP"),
    _later("later.net.lists", "a network list lets exactly the named hosts through", "network lists"),
    _later("later.gateway.delegate", "a delegated spawn matches exactly one pinned shape", "gateway"),
)

# Gaps of a host that explain a skip. The marker ``known_gap`` is the only way to skip.
KNOWN_GAPS = {
    "no_root_caller": "the suite runs as an ordinary user; root as a caller needs root",
    "not_x86_64": "this attack exists on x86_64 only (x32, 32-bit entry)",
    "no_pyenv": "pyenv comes from its own repository alone, and the account that runs the tests has none",
    "no_fuse": "the host has no /dev/fuse, so nothing that hangs can be mounted",
    "no_cryptography": "the package that signs heads (extra audit) is not installed",
    "no_cryptography_for_accounts": "the interpreter that accounts use has no package that signs heads",
    "no_rustup": "the Rust of this host is not rustup's: there are no proxies to start it by",
    "no_debian_tools": "a tool of the system's packages is missing, and only root can install it",
}

NOW = (PROMISES + LAUNCHER + DECISION + FIELD_A + FIELD_B + FIELD_C + FIELD_D + END + FIELD_F + INSTALL + LEARN + NEST
       + PROVE + CACHES + AGENTS + FIELD_E + ALONE + AUDIT)
BY_ID = {entry.id: entry for entry in NOW + DEFERRED}


def at_tiers(promise_id: str) -> Any:
    """Run the test once at each tier that requires the promise."""
    return pytest.mark.parametrize("tier", BY_ID[promise_id].tiers)


def requirement(*ids: str) -> Callable[[Any], Any]:
    """Mark a test as evidence for the given ids; an unknown id stops the collection."""
    unknown = [wanted for wanted in ids if wanted not in BY_ID]
    if unknown or not ids:
        raise KeyError(f"requirement ids {unknown or 'missing'}: see tests/requirements.py")
    return pytest.mark.requirement(*ids)
