"""The schemas against real plans and real receipts, both ways.

Owns: that schemas/*.json say what the product does. Real plans and records must
validate; and what a schema refuses the launcher must refuse too, so that the
schema is a description and not a wish.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import stockade

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "src" / "stockade" / "_bin" / "stockade-launch"
TIERS = ("standard", "guarded", "strict")
Json = dict[str, Any]


def schema(name: str) -> jsonschema.Draft202012Validator:
    document = json.loads((ROOT / "schemas" / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


PLAN, RECEIPT = schema("plan.v1.json"), schema("receipt.v1.json")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Json]:
    """A home, a state home and a workspace with a repository of their own."""
    for name in ("home", "state", "work"):
        (tmp_path / name).mkdir(mode=0o700)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))
    subprocess.run(["git", "init", "-q", str(tmp_path / "work")], env=env, check=True)
    work = str(tmp_path / "work")
    yield {"env": env, "cwd": work, "write": [work]}


def stored(argv: list[str]) -> Json:
    """The plan that a launch line names."""
    digest, store = argv[argv.index("--plan") + 1], argv[argv.index("--plan-store") + 1]
    return dict(json.loads((Path(store) / f"{digest}.json").read_bytes()))


def launch(argv: list[str], env: dict[str, str], plan: Json) -> subprocess.CompletedProcess[str]:
    """Start the launcher of a launch line with another plan, as a sealed memfd."""
    import fcntl

    fd = os.memfd_create("plan", os.MFD_ALLOW_SEALING)
    os.write(fd, json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    end = argv.index("--")
    kept = [
        part
        for option, value in zip(argv[1:end:2], argv[2:end:2], strict=True)
        if option in ("--bind", "--cwd", "--state-home")
        for part in (option, value)
    ]
    command = [argv[0], "--plan-fd", str(fd), *kept, *argv[end:]]
    try:
        return subprocess.run(command, env=env, pass_fds=[fd], capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.close(fd)


@pytest.mark.parametrize("net", ["none", "host"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_real_plan_is_what_the_schema_says(place: Json, tier: str, net: str) -> None:
    wrapped = stockade.wrap(["true"], tier=tier, net=net, **place)
    PLAN.validate(stored(list(wrapped.argv)))


@pytest.mark.parametrize("tier", TIERS)
def test_real_records_are_what_the_schema_says(place: Json, tmp_path: Path, tier: str) -> None:
    wrapped = stockade.wrap(["true"], tier=tier, net="host", **place)
    argv, (reader, writer) = list(wrapped.argv), os.pipe()
    try:
        command = [argv[0], "--report-fd", str(writer), *argv[1:]]
        subprocess.run(command, env=dict(wrapped.env), pass_fds=[writer], check=True, timeout=60)
    finally:
        os.close(writer)
    with os.fdopen(reader) as report:
        records = [json.loads(line) for line in report.read().splitlines() if line]
    for record in records:
        RECEIPT.validate(record)
    assert [record["record"] for record in records] == ["launch", "end"]
    assert records[0]["effective_tier"] == tier
    said = [records[0][name] for name in ("decision", "row", "active_tier", "tier_known", "tier_downgrade")]
    assert said == ["wrap", "D2", "off", True, False]


def test_a_refused_launch_writes_a_refusal_without_a_tier(place: Json) -> None:
    argv, (reader, writer) = list(stockade.wrap(["true"], tier="strict", net="none", **place).argv), os.pipe()
    try:
        command = [
            argv[0],
            "--report-fd",
            str(writer),
            "--plan",
            "0" * 64,
            "--plan-store",
            "/nonexistent",
            "--",
            "true",
        ]
        done = subprocess.run(command, pass_fds=[writer], capture_output=True, check=False, timeout=60)
    finally:
        os.close(writer)
    with os.fdopen(reader) as report:
        records = [json.loads(line) for line in report.read().splitlines() if line]
    assert done.returncode == 125
    assert [record["record"] for record in records] == ["refused"]
    RECEIPT.validate(records[0])
    assert "effective_tier" not in records[0]


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the objects of a document are, one of each kind of list item."""
    if isinstance(value, dict):
        yield where
        for key, item in value.items():
            yield from places(item, (*where, key))
    elif isinstance(value, list):
        seen = set()
        for index, item in enumerate(value):
            kind = item.get("kind", "") if isinstance(item, dict) else ""
            if isinstance(item, dict) and kind not in seen:
                seen.add(kind)
                yield from places(item, (*where, index))


def at(document: Json, where: tuple[Any, ...]) -> Json:
    """The object at that place."""
    value: Any = document
    for key in where:
        value = value[key]
    return dict(value) if not isinstance(value, dict) else value


# Open by design: the record is free text, set holds the names of variables.
OPEN = {("record",), ("env", "set")}


def broken_plans(plan: Json) -> Iterator[tuple[str, Json]]:
    """Every object of a plan with an unknown field, and without each of its fields."""
    for where in places(plan):
        if where in OPEN:
            continue
        with_more = copy.deepcopy(plan)
        at(with_more, where)["unknown_field"] = 1
        yield f"{where} unknown field", with_more
        for key in at(plan, where):
            if key != "owner":
                without = copy.deepcopy(plan)
                del at(without, where)[key]
                yield f"{where} without {key}", without


def test_what_the_schema_refuses_the_launcher_refuses(place: Json) -> None:
    wrapped = stockade.wrap(["true"], tier="strict", net="none", **place)
    plan = stored(list(wrapped.argv))
    assert launch(list(wrapped.argv), dict(wrapped.env), plan).returncode == 0
    wrong = []
    for name, broken in broken_plans(plan):
        done = launch(list(wrapped.argv), dict(wrapped.env), broken)
        if PLAN.is_valid(broken) or done.returncode != 125 or "plan_invalid" not in done.stderr:
            wrong.append((name, PLAN.is_valid(broken), done.returncode, done.stderr))
    assert not wrong


def test_the_launcher_names_the_schemas(place: Json) -> None:
    done = subprocess.run(
        [str(LAUNCHER), "--version", "--json"], capture_output=True, text=True, check=True, timeout=60
    )
    facts = json.loads(done.stdout)
    assert (facts["plan_schema"], facts["receipt_schema"]) == ("stockade.plan.v1", "stockade.receipt.v1")
