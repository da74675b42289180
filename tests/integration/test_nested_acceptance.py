"""`stockade run --tier standard stockade run --tier strict …`, as a person types it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from requirements import requirement
from support.actors import Actor, make_repository
from support.cli import Said, environment, inside, line

DIARY = 6
SECRETS = (".netrc", ".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".docker/config.json", ".bash_history", "diary.txt", "elsewhere/notes")
WORK = ("echo changed >> README && git -c user.name=t -c user.email=t@example.invalid commit -q -a -m inside && git status --short -uno && "
        "python3 -c 'import json, tempfile; open(\"made.json\", \"w\").write(json.dumps([1])); tempfile.TemporaryFile()' && cat made.json && echo works")


def typed(actor: Actor, repository: str, *words: str) -> Said:
    """Type a command line outside and wait for it."""
    done = actor.call(line(*words), env=environment(actor), cwd=repository)
    return Said(status=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def receipt(actor: Actor, path: str) -> dict[str, Any]:
    """A receipt that was left in a file."""
    return dict(json.loads(actor.host(path).read_text()))


def place(got: dict[str, Any]) -> list[Any]:
    """Where a run stood and what it got."""
    launch = got["launch"]
    return [launch["requested_tier"], launch["active_tier"], got["effective_tier"], launch["decision"], launch["tier_downgrade"]]


@pytest.fixture
def repository(actor: Actor) -> Iterator[str]:
    """A repository of the test's own, with a secret in it."""
    path = make_repository(actor, f"{actor.home}/work/nested")
    actor.put(f"{path}/.env", "secret of .env\n")
    yield path
    actor.remove(path)


@pytest.fixture
def secrets(actor: Actor) -> Iterator[list[str]]:
    """Files of the home that nobody in a strict box reads."""
    paths = [actor.put(f"{actor.home}/{name}", f"secret of {name}\n") for name in SECRETS]
    yield paths
    for path in paths:
        actor.remove(path)


@requirement("nest.acceptance")
@pytest.mark.parametrize("around", ["standard", "guarded"])
def test_strict_typed_in_a_box_reads_no_secret_and_the_work_goes_on(actor: Actor, repository: str, secrets: list[str], around: str) -> None:
    steal = "; ".join(f"cat {path}" for path in (*secrets, f"{repository}/.env"))
    assert actor.sh(steal).count("secret of") == len(secrets) + 1, "it works without a box"
    bashrc, hook = actor.put(f"{actor.home}/.bashrc", "# mine\n"), f"{repository}/.git/hooks/pre-push"
    before = actor.sh(f"cat {hook} {bashrc}")
    script = f"{steal}; echo evil >> {hook} && echo hook; mv .git .git2 && echo moved; echo evil >> {bashrc}; {WORK}"
    inner = inside(actor, "run", "--tier", "strict", "--net", "none", "--receipt", "inner.json", "--", "sh", "-c", script)
    look = f"cat {secrets[DIARY]}; sort /proc/self/mountinfo | cut -d' ' -f4- | md5sum"
    outer = typed(actor, repository, "run", "--tier", around, "--net", "none", "--receipt", "outer.json", "--", "sh", "-c",
                  f"({look}) > look.1; {shlex.join(inner)}; s=$?; ({look}) > look.2; cmp look.1 look.2 && echo same; exit $s")
    assert outer.status == 0, outer.err
    assert outer.out.split() == ["[1]works", "same"], (outer.out, outer.err)
    assert "secret of" not in outer.out + outer.err
    assert "state home" not in outer.err, "no record of the inner box goes to one"
    assert "secret of diary.txt" in actor.sh(f"cat {repository}/look.1"), "the outer box shows it, before and after"
    assert actor.sh(f"cat {hook} {bashrc}") == before
    assert actor.sh("git log --format=%s -n1", cwd=repository) == "inside\n"
    assert place(receipt(actor, f"{repository}/inner.json")) == ["strict", around, "strict", "tighten", False]
    assert place(receipt(actor, f"{repository}/outer.json")) == [around, "off", around, "wrap", False]


@requirement("nest.acceptance")
def test_guarded_in_standard_and_strict_in_that(actor: Actor, repository: str, secrets: list[str]) -> None:
    deepest = inside(actor, "run", "--tier", "strict", "--net", "none", "--receipt", "3.json", "--", "sh", "-c", f"cat {secrets[DIARY]}; echo deepest")
    middle = inside(actor, "run", "--tier", "guarded", "--net", "none", "--receipt", "2.json", "--", "sh", "-c",
                    f"cat {secrets[0]}; cat {secrets[DIARY]}; exec {shlex.join(deepest)}")
    got = typed(actor, repository, "run", "--tier", "standard", "--net", "none", "--receipt", "1.json", "--", *middle)
    assert (got.status, got.out) == (0, "secret of diary.txt\ndeepest\n"), got
    # What the box in the middle says of itself rests on its own plan: further in it is what is known.
    assert [place(receipt(actor, f"{repository}/{level}.json"))[:3] for level in (1, 2, 3)] == [
        ["standard", "off", "standard"], ["guarded", "standard", "guarded"], ["strict", "standard", "strict"]]


DEEP = """
import subprocess, sys
level, secret, line = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
try:
    print(level, open(secret).read(), flush=True)
except OSError:
    print(level, flush=True)
words = ["run", "--quiet", "--tier", "strict", "--net", "none", "--", sys.executable, "-I", "-B", "deep.py", str(level + 1), secret, *line]
raise SystemExit(subprocess.run([*line, *words]).returncode)
"""


@requirement("nest.deep", "nest.acceptance")
def test_as_deep_as_the_kernel_lets_strict_stays_true_and_then_is_refused(actor: Actor, repository: str, secrets: list[str]) -> None:
    actor.put(f"{repository}/deep.py", DEEP)
    got = typed(actor, repository, "run", "--quiet", "--tier", "standard", "--net", "none", "--", "/usr/bin/python3", "-I", "-B", "deep.py", "0", secrets[DIARY], *inside(actor))
    assert got.status == 125, got
    first, *rest = got.out.split("\n", 2)
    assert (first, rest[0]) == ("0 secret of diary.txt", ""), "the outermost reads it"
    levels = rest[1].split()
    assert levels == [str(level) for level in range(1, len(levels) + 1)] and len(levels) >= 20, got
    assert "namespace_denied" in got.err and "Traceback" not in got.err, got.err
