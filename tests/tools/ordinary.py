"""What an ordinary user does with ordinary tools, bare and in boxes.

Owns ``Job`` (a project, one command line in it, what it prints) and ``at_work``, which does it bare
first (a job that fails without a box shows nothing) and then at each tier, each time in a project
laid anew. The tier that the receipt names is the tier that was asked for, or the job failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from support.actors import Actor, make_repository
from support.boxes import BoxRun
from tools.support import LIMIT_S, TIERS, Tool, forwarded
from tools.table import BARE, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing that is done in a project."""

    tool: str  # its name in the table
    argv: Sequence[str]
    shows: str  # in what it prints
    files: Mapping[str, str] = field(default_factory=dict)
    lay: str = ""  # a shell script that completes the project, without a box
    tiers: Sequence[str] = TIERS
    net: str | None = "none"  # None: what the profile says
    env: Mapping[str, str] = field(default_factory=dict)  # of the caller
    uses: Tool = field(default_factory=Tool)
    grants: Mapping[str, object] = field(default_factory=dict)
    check: Callable[[Actor, str], None] | None = None  # of what it left on the host
    gaps: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (caller, tier): the known gap that is shown instead
    says: str = ""  # what a start in a gap says


def script(text: str) -> list[str]:
    """A shell that stops at the first error."""
    return ["/bin/sh", "-ec", text]


def at_work(actor: Actor, job: Job) -> None:
    """Do it bare, then at every tier."""
    tree = laid(actor, job)
    with measured(job.tool, actor.name, BARE):
        done = actor.call(list(job.argv), cwd=tree, env=environment(actor, job), timeout_s=LIMIT_S)
        assert done.returncode == 0 and job.shows in done.stdout.decode(), (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    if job.check is not None:
        job.check(actor, tree)
    for tier in job.tiers:
        tree = laid(actor, job)
        gap = job.gaps.get((actor.name, tier))
        with measured(job.tool, actor.name, tier, gap):
            done = boxed(actor, job, tree, tier)
            if gap is not None:
                assert done.returncode != 0 and job.says in done.stdout + done.stderr, (tier, done.raw)
                continue
            assert done.returncode == 0 and job.shows in done.stdout, (tier, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
            assert done.receipt["effective_tier"] == tier, done.receipt["missing"]
        if job.check is not None:
            job.check(actor, tree)
    actor.remove(tree)


def laid(actor: Actor, job: Job) -> str:
    """The project, as new."""
    tree = f"{actor.home}/work/ordinary"
    actor.remove(tree)
    make_repository(actor, tree)
    for name, text in job.files.items():
        actor.put(f"{tree}/{name}", text, 0o755)
    if job.lay:
        done = actor.call(script(job.lay), cwd=tree, env=environment(actor, job), timeout_s=LIMIT_S)
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return tree


def environment(actor: Actor, job: Job) -> dict[str, str]:
    """The caller's."""
    return {**actor.env, **forwarded(), **job.uses.env, "PATH": ":".join([*job.uses.path, actor.env["PATH"]]), **job.env}


def boxed(actor: Actor, job: Job, tree: str, tier: str) -> BoxRun:
    """One start in a box, with the grants of the job alone."""
    kwargs: dict[str, object] = {"tier": tier, "caller": "operator", "cwd": tree, **job.grants}
    kwargs["read"] = [*job.uses.read, *job.grants.get("read", ())]  # type: ignore[misc]
    if job.net is not None:
        kwargs["net"] = job.net
    asked = {"mode": "run", "argv": list(job.argv), "kwargs": kwargs}
    return BoxRun(actor.answer(asked, cwd=tree, env=environment(actor, job), timeout_s=LIMIT_S))
