"""Toolchains in the home: found at strict by their command alone, nothing of them granted by hand.

Each is laid out as its own installer does it, with the real programs. The home is otherwise closed:
every job also looks for a file beside the toolchain, which is there without a box and not in one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import skip_for_gap
from requirements import requirement
from support.actors import Actor
from tools.ordinary import Job, at_work
from tools.support import Tool

BESIDE = "elsewhere/beside"
HELLO = "print('hello from', __import__('sys').prefix)\n"


def _work(actor: Actor, tool: str, line: str, shows: str, *, path: str = "", env: dict[str, str] | None = None, **job: object) -> None:
    """At strict, by the command line that a user types."""
    actor.put(f"{actor.home}/{BESIDE}", "beside\n", 0o644)
    search = f"{path}:{actor.env['PATH']}" if path else actor.env["PATH"]
    at_work(actor, Job(tool=tool, argv=line.split(), shows=shows, env={"PATH": search, **(env or {})}, tiers=("strict", "guarded"), **job))  # type: ignore[arg-type]
    hidden = actor.run(["cat", f"{actor.home}/{BESIDE}"], tier="strict", env={**actor.env, "PATH": search})
    assert hidden.returncode == 1 and "No such file" in hidden.stderr


@pytest.fixture
def places(actor: Actor) -> Iterator[list[str]]:
    """What the test makes in the home, removed at its end."""
    made: list[str] = []
    yield made
    for name in made:
        actor.remove(f"{actor.home}/{name}")


@requirement("E.toolchains")
def test_pyenv_shims_lead_to_the_version_that_is_chosen(actor: Actor, places: list[str]) -> None:
    skip_for_gap("no_pyenv")
    places += [".pyenv"]
    root = f"{actor.home}/.pyenv"
    for part in ("bin", "libexec", "pyenv.d"):
        shutil.copytree(Path("~/.pyenv").expanduser() / part, actor.host(f"{root}/{part}"), symlinks=True)
    actor.sh(f"chmod -R a+rX {root}" if actor.is_root else ":")
    for name in ("own-1", "own-2"):
        actor.make_dir(f"{root}/versions")
        actor.sh(f"/usr/bin/python3 -m venv --without-pip {root}/versions/{name}")
    os.chown(actor.host(root), actor.uid, actor.gid)
    env = {"PYENV_ROOT": root, "PATH": f"{root}/shims:{root}/bin:{actor.env['PATH']}"}
    actor.sh("pyenv rehash && pyenv global own-1", env={**actor.env, **env})
    _work(actor, "pyenv, global", "python t.py", f"hello from {root}/versions/own-1", env=env, files={"t.py": HELLO})
    _work(actor, "pyenv, of the project", "python t.py", f"hello from {root}/versions/own-2", env=env, files={"t.py": HELLO, ".python-version": "own-2\n"})


@requirement("E.toolchains")
def test_node_of_nvm_and_a_global_package_of_it(actor: Actor, places: list[str]) -> None:
    places += [".nvm"]
    version = f"{actor.home}/.nvm/versions/node/v20.1.0"
    node = shutil.which("node")
    assert node is not None
    actor.put(f"{version}/bin/node", "", 0o755)
    shutil.copy(os.path.realpath(node), actor.host(f"{version}/bin/node"))
    actor.put(f"{version}/lib/node_modules/greet/cli.js", "#!/usr/bin/env node\nconsole.log('greeted by', process.execPath)\n", 0o755)
    actor.host(f"{version}/bin/greet").symlink_to("../lib/node_modules/greet/cli.js")
    _work(actor, "nvm, node", "node -p process.execPath", f"{version}/bin/node", path=f"{version}/bin")
    _work(actor, "nvm, global package", "greet", f"greeted by {version}/bin/node", path=f"{version}/bin")
    _work(actor, "nvm, by its path", f"{version}/bin/greet", "greeted by /usr/bin/node")


@requirement("E.toolchains")
def test_a_virtual_environment_made_from_another(actor: Actor, places: list[str]) -> None:
    """The project's environment leads to a Python of the home, which leads to the system's."""
    places += [".local/share/uv"]
    base = f"{actor.home}/.local/share/uv/python/cpython-own"
    lay = (f"mkdir -p {base} && /usr/bin/python3 -m venv --without-pip {base} && {base}/bin/python3 -m venv --without-pip .venv && "
           "printf '#!%s/.venv/bin/python\\nimport t\\n' \"$PWD\" > .venv/bin/greet && chmod 755 .venv/bin/greet")
    work = f"{actor.home}/work/ordinary"
    files = {"t.py": HELLO}
    _work(actor, "venv, its python", ".venv/bin/python t.py", f"hello from {work}/.venv", files=files, lay=lay)
    _work(actor, "venv, a script of it", "greet", f"hello from {work}/.venv", path=f"{work}/.venv/bin", files=files, lay=f"{lay} && mv t.py .venv/lib/python3*/site-packages/")


@pytest.fixture(scope="session")
def rust_prefix(request: pytest.FixtureRequest) -> Tool:
    """The toolchain that the proxies start; only where there are proxies."""
    skip_for_gap("no_rustup")
    tool: Tool = request.getfixturevalue("rust")
    return tool


@requirement("E.toolchains")
def test_rustup_proxies_start_the_toolchain_that_is_chosen(actor: Actor, places: list[str], rust_prefix: Tool) -> None:
    places += [".cargo", ".rustup"]
    proxy, prefix = shutil.which("rustup"), rust_prefix.read[0]
    assert proxy is not None
    actor.put(f"{actor.home}/.cargo/bin/rustup", "", 0o755)
    shutil.copy(os.path.realpath(proxy), actor.host(f"{actor.home}/.cargo/bin/rustup"))
    for name in ("cargo", "rustc"):
        actor.host(f"{actor.home}/.cargo/bin/{name}").symlink_to("rustup")
    env = {"PATH": f"{actor.home}/.cargo/bin:{actor.env['PATH']}"}
    actor.sh(f"rustup -q set auto-self-update disable; rustup toolchain link own {prefix} && rustup default own", env={**actor.env, **env})
    files = {"Cargo.toml": '[package]\nname = "t"\nversion = "0.1.0"\nedition = "2021"\n', "src/main.rs": 'fn main() { println!("answer {}", 6 * 7) }\n'}
    # A toolchain that was linked lies where its owner built it: that place is named.
    grants = {"read": [prefix]}
    _work(actor, "rustup proxy, cargo", "cargo run -q", "answer 42", env=env, files=files, grants=grants)
    _work(actor, "rustup proxy, rustc", "rustc --version", "rustc 1", env=env, grants=grants)


@requirement("E.toolchains")
def test_a_chain_of_interpreters_and_links(actor: Actor, places: list[str]) -> None:
    """A link in ~/bin, a script whose interpreter is a script of another directory, env with options."""
    places += ["bin", "opt"]
    actor.put(f"{actor.home}/opt/lang/bin/lang", "#!/usr/bin/env -S python3 -E\nimport sys\nprint('lang runs', open(sys.argv[1]).read().splitlines()[1])\n", 0o755)
    actor.put(f"{actor.home}/opt/tool/tool", f"#!{actor.home}/opt/lang/bin/lang\nthe program\n", 0o755)
    actor.make_dir(f"{actor.home}/bin")
    actor.host(f"{actor.home}/bin/tool").symlink_to("../opt/tool/tool")
    _work(actor, "shebang chain", "tool", "lang runs the program", path=f"{actor.home}/bin")
    _work(actor, "shebang chain, by path", f"{actor.home}/bin/tool", "lang runs the program")


@requirement("E.toolchains")
@pytest.mark.parametrize("name", ["/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/env"])
def test_both_names_of_the_merged_system_directories(actor: Actor, name: str) -> None:
    line = f"{name} -c echo" if name.endswith("sh") else f"{name} /bin/echo merged"
    shows = "" if name.endswith("sh") else "merged"
    _work(actor, "usrmerge", line, shows)
    text = "test /bin/ls -ef /usr/bin/ls; test -L /bin; readlink /bin; /sbin/ldconfig --version | head -1 | cut -d' ' -f1; ldd /bin/true | grep -c /lib"
    at_work(actor, Job(tool="usrmerge, a shell", argv=[name, *(["sh"] if name.endswith("env") else []), "-ec", text], shows="usr/bin\nldconfig\n"))


@requirement("E.toolchains")
def test_a_home_behind_a_link_shows_its_toolchains(actor: Actor, places: list[str]) -> None:
    """PATH, HOME and the working directory are spelled by the link, as after a move of /home."""
    places += ["bin"]
    link = "/var/tmp/home-of-ordinary"
    actor.remove(link)
    actor.host(link).symlink_to(actor.home)
    actor.put(f"{actor.home}/bin/tool", "#!/bin/sh\necho \"tool at $0\"; cd && pwd -P\n", 0o755)
    try:
        _work(actor, "home behind a link", "tool", f"{actor.home}\n", path=f"{link}/bin", env={"HOME": link})
    finally:
        actor.remove(link)
