"""The peers that the launcher is measured against, given an equivalent policy.

Owns: the translation of a plan into a bubblewrap command line, row by row, so
that both build the same file system; and the minimal helper. What bubblewrap
has no word for (Landlock, seccomp, whiteouts, the guard watch, the receipt) is
left out in its favour.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Contestant

UNSHARE = {
    "user": "--unshare-user", "pid": "--unshare-pid", "ipc": "--unshare-ipc",
    "uts": "--unshare-uts", "cgroup": "--unshare-cgroup", "net": "--unshare-net",
}  # fmt: skip


def resolve(path: str, binds: Mapping[str, str]) -> str:
    """Put the parameters of a plan in place."""
    if not path.startswith("@"):
        return path
    name, _, rest = path[1:].partition("/")
    return f"{binds[name]}/{rest}".rstrip("/") if rest else binds[name]


def bind_args(row: Mapping[str, Any], source: str, target: str) -> list[str]:
    """A bind row, read-only or not, optional or not."""
    if row["optional"] and not os.path.lexists(source):
        return []
    return ["--ro-bind" if "ro" in row["attrs"] else "--bind", source, target]


def overlay_args(row: Mapping[str, Any], source: str, target: str) -> list[str]:
    """The nearest that bubblewrap has: the directory, and an empty mount over each hidden name that exists."""
    args = ["--ro-bind", source, target]
    for name in row["hide"]:
        path = os.path.join(source, name)
        if os.path.isdir(path):
            args += ["--tmpfs", os.path.join(target, name)]
        elif os.path.lexists(path):
            args += ["--ro-bind", "/dev/null", os.path.join(target, name)]
    return args


def proc_covers(target: str, names: Sequence[str]) -> list[str]:
    """The kernel's controls read-only, as in the plan; bubblewrap covers four of them by itself."""
    own = {"sys", "sysrq-trigger", "irq", "bus"}
    paths = [f"{target}/{name}" for name in names if name not in own and os.path.exists(f"/proc/{name}")]
    return [word for path in paths for word in ("--ro-bind", path, path)]


def row_args(row: Mapping[str, Any], binds: Mapping[str, str], files: list[int]) -> list[str]:
    """One row of the plan in bubblewrap's words."""
    target = resolve(row["target"], binds)
    source = resolve(row["source"], binds) if row.get("source") else ""
    match row["kind"]:
        case "bind":
            return bind_args(row, source, target)
        case "overlay":
            return overlay_args(row, source, target)
        case "cache":
            return ["--bind", resolve(row["upper"], binds), target]
        case "tmpfs":
            # bubblewrap's root is a tmpfs already
            return [] if target == "/" else ["--tmpfs", target]
        case "dir":
            return ["--dir", target]
        case "symlink":
            return ["--symlink", row["to"], target]
        case "file":
            files.append(memory_file(row["content"]))
            return ["--file", str(files[-1]), target]
        case "proc":
            return ["--proc", target, *proc_covers(target, row["covers"])]
        case "dev":
            return ["--dev", target, "--tmpfs", f"{target}/shm", "--mqueue", f"{target}/mqueue"]
        case "seal":
            return ["--remount-ro", target]
    raise ValueError(f"bench_row: translation of a row: got kind '{row['kind']}', expected a known one")


def memory_file(content: str) -> int:
    """A descriptor that bubblewrap reads a file's content from; handed over and rewound for each run."""
    fd = os.memfd_create("bench", 0)
    os.write(fd, content.encode())
    return fd


def depth(target: str) -> int:
    """Number of components, as the launcher sorts."""
    return len([part for part in target.split("/") if part])


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One stored launch line of the product, taken apart."""

    argv: Sequence[str]
    env: Mapping[str, str]
    plan: Mapping[str, Any]
    binds: Mapping[str, str]
    command: Sequence[str]

    def contestant(self) -> Contestant:
        """The launch line itself."""
        return Contestant(argv=self.argv, env=self.env)


def take_apart(argv: Sequence[str], env: Mapping[str, str]) -> Launch:
    """Read the plan and the parameters that a launch line names."""
    end = argv.index("--")
    options = list(itertools.pairwise(argv[1:end]))
    named = {name: value for name, value in options if name.startswith("--")}
    binds = dict(value.split("=", 1) for name, value in options if name == "--bind")
    plan = json.loads((Path(named["--plan-store"]) / f"{named['--plan']}.json").read_text())
    return Launch(argv=list(argv), env=dict(env), plan=plan, binds=binds, command=list(argv[end + 1 :]))


def bubblewrap(launch: Launch, *, files_too: bool = True) -> Contestant:
    """Bubblewrap with the same namespaces, mounts and guards as the plan.

    ``files_too=False`` leaves the generated files out: their descriptors have
    one offset each and cannot serve two runs at once.
    """
    plan, binds = launch.plan, launch.binds
    program = shutil.which("bwrap")
    if program is None:
        raise RuntimeError("bench_peer: search of bubblewrap: got nothing on PATH, expected bwrap (hint: make setup)")
    files: list[int] = []
    args = [program, "--die-with-parent", *[UNSHARE[name] for name in plan["namespaces"] if name in UNSHARE]]
    rows = sorted(plan["mounts"], key=lambda row: (row["kind"] == "seal", depth(resolve(row["target"], binds))))
    for row in rows:
        if files_too or row["kind"] != "file":
            args += row_args(row, binds, files)
    for guard in plan["guards"]:
        path = resolve(guard["path"], binds)
        if not os.path.lexists(path):
            continue
        args += ["--ro-bind" if guard["read_only"] else "--bind", path, path]
    # The box record is a file system of its own.
    args += ["--tmpfs", "/run/stockade", "--remount-ro", "/run/stockade"]
    args += ["--chdir", resolve(plan["cwd"], binds), "--", *launch.command]
    return Contestant(argv=args, env=launch.env, rewind=tuple(files))


def minimal(
    helper: Path, hidden: Sequence[Path], command: Sequence[str], env: Mapping[str, str], *, net: bool
) -> Contestant:
    """The minimal static helper with ten masks."""
    flags = ["-n"] if net else []
    return Contestant(argv=[str(helper), *flags, *map(str, hidden), "--", *command], env=env)
