"""The wheels and the source archive: what is in them, where they install, what they do there."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging import tags
from packaging.utils import parse_wheel_filename

from requirements import requirement
from support.actors import PYTHON, Actor
from support.builders import Stage
from support.wheels import ROOT, pip, sdist, wheel

MACHINE = platform.machine()
LAUNCHER = "stockade/_bin/stockade-launch"
# For a shell script that looks for Rust; what else is on PATH could bring one.
BUILD_TOOLS = ("sh", "dirname", "id", "cut", "sed", "env")


def install(actor: Actor, stage: Stage, place: str) -> str:
    """Make a virtual environment with the wheel in it, as somebody with an empty home does; return its bin."""
    actor.remove(place)
    home = actor.make_dir(f"{place}-home")
    actor.make_dir(os.path.dirname(place))
    env = {**actor.env, "HOME": home}
    for argv in ([PYTHON, "-m", "venv", place],
                 [f"{place}/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", str(wheel(stage))]):
        done = actor.call(argv, env=env, timeout_s=120)
        assert done.returncode == 0, done.stderr.decode()
    return f"{place}/bin"


@pytest.fixture(scope="module")
def installs() -> dict[str, str]:
    """The installs of this module, by actor: making one takes seconds."""
    return {}


def installed(actor: Actor, stage: Stage, installs: dict[str, str]) -> str:
    if actor.name not in installs:
        installs[actor.name] = install(actor, stage, f"{actor.home}/tools/first")
    return installs[actor.name]


@requirement("install.wheel")
def test_the_wheel_holds_the_launcher_and_names_where_a_static_program_runs(stage: Stage) -> None:
    path = wheel(stage)
    named = parse_wheel_filename(path.name)[3]
    for system in (f"manylinux_2_17_{MACHINE}", f"musllinux_1_1_{MACHINE}"):
        assert tags.Tag("py3", "none", system) in named
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(LAUNCHER)
        assert info.external_attr >> 16 & 0o777 == 0o755
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith(".dist-info/WHEEL"))).decode()
        archive.extract(LAUNCHER, stage.root / "unpacked")
    assert "Root-Is-Purelib: false" in text and text.count("Tag: ") == 2
    assert not [name for name in names if not name.startswith("stockade")]
    # That both tags are honest: no loader, no library.
    shown = subprocess.run(["readelf", "-lWd", str(stage.root / "unpacked" / LAUNCHER)], capture_output=True, text=True, check=True)
    assert "INTERP" not in shown.stdout and "NEEDED" not in shown.stdout


@requirement("install.wheel")
@pytest.mark.parametrize(("system", "pure"), [
    (f"manylinux_2_17_{MACHINE}", False), (f"musllinux_1_1_{MACHINE}", False),
    ("macosx_14_0_arm64", True), ("win_amd64", True), ("manylinux_2_39_riscv64", True)])
def test_pip_takes_the_wheel_with_a_launcher_where_there_is_one(stage: Stage, tmp_path: Path, system: str, pure: bool) -> None:
    wheel(stage, "pure"), wheel(stage)
    done = pip("download", "-q", "--only-binary", ":all:", "--no-deps", "--find-links", str(stage.root / "dist"),
               "--platform", system, "-d", str(tmp_path), "stockade")
    assert done.returncode == 0, done.stderr
    assert [path.name.endswith("-none-any.whl") for path in tmp_path.iterdir()] == [pure]


@requirement("install.wheel")
def test_an_install_in_an_empty_home_works_at_once(actor: Actor, stage: Stage, installs: dict[str, str]) -> None:
    stockade = f"{installed(actor, stage, installs)}/stockade"
    home = actor.make_dir(f"{actor.home}/empty")
    env = {"HOME": home, "PATH": "/usr/bin:/bin"}
    for words in (["doctor"], ["run", "--tier", "strict", "true"], ["run", "--tier", "guarded", "--", "sh", "-c", "exit 7"]):
        done = actor.call([stockade, *words], env=env)
        assert (done.returncode, done.stderr.decode()) == (7 if "exit 7" in words else 0, ""), (words, done.stdout)
    assert sorted(os.listdir(actor.host(home))) == [".local"]
    actor.remove(home)


@requirement("fs.own_state")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_an_installed_wheel_inside_a_write_root_is_read_only(actor: Actor, stage: Stage, installs: dict[str, str], tier: str) -> None:
    bin_dir = installed(actor, stage, installs)
    site = actor.sh(f"{bin_dir}/python -c 'import stockade, os; print(os.path.dirname(stockade.__path__[0]))'").strip()
    attacks = [f"true >> {path}" for path in (f"{site}/{LAUNCHER}", f"{site}/stockade/errors.py", f"{site}/evil.pth", f"{bin_dir}/stockade")]
    attacks += [f"chmod 755 {site}/{LAUNCHER}", *(f"mv {path} {path}.gone && mv {path}.gone {path}"
                                                  for path in (f"{site}/{LAUNCHER}", f"{site}/stockade", os.path.dirname(bin_dir)))]
    script = "".join(f"{attack} && echo worked; " for attack in attacks) + "echo x > twin && echo twin; true"
    assert actor.sh(script, cwd=f"{actor.home}/tools").split().count("worked") == len(attacks)
    actor.remove(f"{site}/evil.pth")
    run = [f"{bin_dir}/stockade", "run", "--tier", tier, "--write", f"{actor.home}/tools"]
    done = actor.call([*run, "--", "sh", "-c", script], cwd=f"{actor.home}/tools")
    assert done.stdout.decode().split() == ["twin"], (done.stdout, done.stderr)
    done = actor.call([*run, "--write", bin_dir, "true"])
    assert done.returncode == 125 and b"own_install" in done.stderr


@requirement("install.wheel")
def test_two_installs_side_by_side_do_not_disturb_each_other(actor: Actor, stage: Stage, installs: dict[str, str]) -> None:
    """One state home, two launchers: neither takes the other's plans or its answers about the host for its own."""
    first = installed(actor, stage, installs)
    second = f"{actor.home}/tools/second"
    actor.remove(second)
    shutil.copytree(actor.host(os.path.dirname(first)), actor.host(second), symlinks=True)
    subprocess.run(["chown", "-hR", f"{actor.uid}:{actor.gid}", str(actor.host(second))], check=True)
    text = "import stockade; line = stockade.wrap(['sh', '-c', 'exit 5'], tier='strict', cwd='/'); print(*line.argv, sep='\\n')"
    lines = {}
    for place in (first, f"{second}/bin", first):
        lines[place] = actor.sh(f"{place}/python -c \"{text}\"").splitlines()
        done = actor.call([f"{place}/python", "-m", "stockade", "run", "--tier", "strict", "--", "sh", "-c", "exit 3"])
        assert (done.returncode, done.stderr) == (3, b""), place
    assert [line[0].startswith(f"{os.path.dirname(place)}/") for place, line in lines.items()] == [True, True]
    actor.remove(second)
    assert actor.call(lines[first]).returncode == 5, "a launch line of one outlives the other"


@requirement("install.elsewhere")
def test_building_without_rust_ends_with_one_line_and_no_wheel(stage: Stage, tmp_path: Path) -> None:
    tools, out = tmp_path / "bin", tmp_path / "out"
    tools.mkdir()
    for name in BUILD_TOOLS:
        program = shutil.which(name)
        assert program is not None
        (tools / name).symlink_to(program)
    hide = "[ ! -d /usr/local/cargo ] || mount -t tmpfs none /usr/local/cargo; "
    env = {"PATH": str(tools), "HOME": str(tmp_path), "CARGO_HOME": str(tmp_path)}
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{hide}PATH={tools} exec "$@"', "sh", sys.executable, "-m", "pip", "wheel",
            "--no-index", "--no-deps", "--no-build-isolation", "-w", str(out), str(sdist(stage))]
    done = subprocess.run(argv, env={**env, "PATH": f"{tools}:{os.environ['PATH']}"}, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "stockade: " in line]
    assert done.returncode == 1 and len(said) == 1, done.stdout + done.stderr
    assert said[0].startswith("stockade: rust_missing: build of the launcher: got no working cargo") and "(hint: " in said[0]
    assert "Traceback" not in done.stdout + done.stderr and list(out.iterdir()) == []


@requirement("install.elsewhere")
def test_a_wheel_is_refused_for_an_architecture_without_a_reviewed_filter() -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "scripts" / "hatch_build.py")
    assert spec and spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    with pytest.raises(SystemExit, match="got the architecture 'riscv64'"):
        hook.tag("riscv64")
    with pytest.raises(SystemExit, match="got 'both', expected launcher or pure"):
        hook.kind("both", "linux")
    assert [hook.kind("", system) for system in ("linux", "darwin", "win32")] == ["launcher", "pure", "pure"]
    assert {path.stem for path in (ROOT / "launcher" / "seccomp").glob("[!n]*.toml")} == set(hook.ARCHITECTURES)


@requirement("install.elsewhere")
@pytest.mark.parametrize("system", ["darwin", "win32", "linux"])
def test_the_pure_wheel_answers_every_request_with_a_typed_refusal(user: Actor, stage: Stage, system: str) -> None:
    place = stage.root / f"pure-{system}"
    with zipfile.ZipFile(wheel(stage, "pure")) as archive:
        assert not [name for name in archive.namelist() if "_bin" in name]
        archive.extractall(place)
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
    if system == "linux":
        done = user.call([PYTHON, "-B", "-m", "stockade", "run", "true"], env={**user.env, "PYTHONPATH": str(place)})
        assert done.returncode == 125 and b"launcher_missing" in done.stderr and done.stderr.count(b"\n") == 1
        return
    done = user.call([PYTHON, "-B", str(stage.bin / "elsewhere.py"), system, str(place)])
    assert done.returncode == 0, done.stderr.decode()
    answers = json.loads(done.stdout)
    assert answers.pop("loaded") == [] and answers.pop("active") == ["value", "'unknown'"]
    assert answers.pop("isinstance") == ["value", "False"]
    assert [answers.pop(words)[0] for words in ("--version", "run --help")] == [0, 0]
    for name, answer in answers.items():
        if len(answer) == 3:
            status, out, err = answer
            assert (status, out, err.count("\n")) == (125 if name in ("run true", "shell") else 2, "", 1)
            answer = ["Refused", err.removeprefix("stockade: refused: ")]
        assert answer[0] == "Refused" and answer[1].startswith("no_backend: stockade") and f"got the system '{system}'" in answer[1], name
        assert "(hint: " in answer[1]
