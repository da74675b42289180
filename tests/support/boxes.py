"""Results of boxes, and the assertions that attack tests speak in.

Owns the reading of a driver's answer: a refusal where a run was expected is an assertion
failure that shows the refusal, never an empty result.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Op = dict[str, Any]
Answers = dict[str, dict[str, Any]]


def op(kind: str, label: str | None = None, /, **fields: Any) -> Op:
    """One operation for ``hostile/probe.py``; labelled by its kind and path unless told."""
    return {"op": kind, "id": label or f"{kind} {fields.get('path', fields.get('pid', ''))}".strip(), **fields}


def labels(ops: Sequence[Op]) -> list[str]:
    """The names that the answers will have; two operations of one name would leave one answer."""
    names = [str(item["id"]) for item in ops]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert names and not twice, f"no operations, or the same name twice: {twice}"
    return names


def parse_answers(stdout: bytes | str, stderr: bytes | str, asked: Sequence[Op]) -> Answers:
    """Parse the probe's report: one answer for each operation, no more and no less."""
    try:
        answers: Answers = dict(json.loads(stdout))
    except ValueError:
        raise AssertionError(f"the probe gave no report: {stdout!r} {stderr!r}") from None
    assert sorted(answers) == sorted(labels(asked)), "the report answers something else than was asked"
    return answers


class BoxRun:
    """One finished box: its end, its receipt and the probe's answers."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        """Keep the driver's answer."""
        self.raw = raw
        self.answers: Answers = {}

    @property
    def refused(self) -> dict[str, Any] | None:
        """The typed refusal, or None."""
        value = self.raw.get("refused")
        return dict(value) if value is not None else None

    @property
    def code(self) -> str | None:
        """The refusal's code, or None when the box ran."""
        return None if self.refused is None else str(self.refused["code"])

    @property
    def receipt(self) -> dict[str, Any]:
        """The receipt of a box that ran."""
        assert self.refused is None, self.refused
        return dict(self.raw["receipt"])

    @property
    def returncode(self) -> int:
        """The command's own end."""
        assert self.refused is None, self.refused
        return int(self.raw["returncode"])

    @property
    def stdout(self) -> str:
        """What the command wrote."""
        assert self.refused is None, self.refused
        return str(self.raw["stdout"])

    @property
    def stderr(self) -> str:
        """What the command and the launcher wrote on standard error."""
        return str(self.raw.get("stderr", ""))

    def with_answers(self, asked: Sequence[Op]) -> BoxRun:
        """Parse the probe's report out of standard output."""
        assert self.refused is None, self.refused
        self.answers = parse_answers(self.stdout, self.stderr, asked)
        return self

    def state(self, promise: str) -> str:
        """State of a promise in the receipt."""
        rows = {row["id"]: row["state"] for row in self.receipt["promises"]}
        return str(rows[promise])

    def value(self, name: str) -> Any:
        """Value of an operation that has to have worked."""
        assert self.answers[name]["errno"] is None, (name, self.answers[name])
        return self.answers[name]["value"]


def _judged(answers: Answers, but: Collection[str]) -> Answers:
    """The answers without the excepted ones; an assertion about none of them would show nothing."""
    unknown = sorted(set(but) - set(answers))
    assert unknown == [], f"excepted, but nobody asked: {unknown}"
    left = {name: got for name, got in answers.items() if name not in but}
    assert left, "nothing is left to judge"
    return left


def worked(answers: Answers, but: Collection[str] = ()) -> None:
    """Every operation succeeded (the attack works without the box)."""
    failed = {name: got["errno"] for name, got in _judged(answers, but).items() if got["errno"] is not None}
    assert failed == {}, f"these should have worked: {failed}"


def failed_with(answers: Answers, expected: Collection[str], but: Collection[str] = ()) -> None:
    """Every operation failed with one of the expected error numbers."""
    wrong = {name: (got["errno"], got["value"]) for name, got in _judged(answers, but).items() if got["errno"] not in expected}
    assert wrong == {}, f"expected {sorted(expected)}: {wrong}"


def found_only(run: BoxRun, name: str, witnesses: Collection[str]) -> None:
    """A search inside found the witnesses, so it did look there, and nothing else."""
    assert witnesses, "a search without a witness may have looked nowhere"
    assert run.value(name) == sorted(witnesses)


def kept(run: BoxRun, promise: str, tier: str) -> None:
    """The receipt claims the promise, at the tier that was asked for."""
    assert run.state(promise) == "kept", [row for row in run.receipt["promises"] if row["id"] == promise]
    assert run.receipt["effective_tier"] == tier, run.receipt["missing"]
