"""What package managers do with files: hard links, programs that unpack libraries, hooks that a package installs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import stockade
from tools.ordinary import Job, at_work, environment, laid, script
from tools.support import Tool
from tools.table import BARE, measured

PNPM = {"package.json": json.dumps({"name": "t", "version": "1.0.0", "dependencies": {"left-pad": "1.3.0"}})}
# A library for Node, and through it for Bun: one function that answers.
ADDON = """#include <node_api.h>
static napi_value answer(napi_env env, napi_callback_info info) { napi_value v; napi_create_int32(env, 42, &v); return v; }
static napi_value init(napi_env env, napi_value exports) {
  napi_value f; napi_create_function(env, "answer", NAPI_AUTO_LENGTH, answer, 0, &f);
  napi_set_named_property(env, exports, "answer", f); return exports;
}
NAPI_MODULE(addon, init)
"""
# What packed Node programs (pkg, nexe) do with a library that lies inside them.
UNPACK = """const fs = require('fs'), os = require('os'), path = require('path');
const place = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'unpacked-')), 'addon.node');
fs.writeFileSync(place, fs.readFileSync('addon.node'));
console.log('answer', require(place).answer(), place.startsWith(process.env.TMPDIR || os.tmpdir()));
"""
BUN = "const addon = require('./addon.node');\nconsole.log('answer', addon.answer());\n"


@requirement("E.packages")
@pytest.mark.parametrize("way", ["hardlink", "copy"])
def test_pnpm_links_packages_out_of_its_store(actor: Actor, npm_tool: Callable[..., Tool], way: str) -> None:
    """The store lies in the project, as where the home is on another disk: one file system, hard links."""
    again = ["pnpm", "install", "--offline", "--store-dir", "store", "--package-import-method", way]
    linked = "-gt" if way == "hardlink" else "-eq"
    text = (f"pnpm install --store-dir store --package-import-method {way}; rm -rf node_modules; {' '.join(again)}; "
            f"test $(stat -c %h node_modules/left-pad/index.js) {linked} 1; node -e \"console.log(require('left-pad')('x', 3, '.'))\"")
    at_work(actor, Job(tool=f"pnpm, {way}", files=PNPM, argv=script(text), shows="..x", uses=npm_tool("pnpm"), net="host",
                       grants={"profile": ["pnpm"]}))


@pytest.fixture(scope="module")
def addon(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The headers of the Node that is on the PATH."""
    node = shutil.which("node")
    assert node is not None
    for place in (Path(os.path.realpath(node)).parent.parent / "include" / "node", Path("/usr/include/node")):
        if (place / "node_api.h").is_file():
            return f"gcc -shared -fPIC -I{place} -o addon.node addon.c"
    raise AssertionError("no headers of Node beside it")


@requirement("E.unpacked")
def test_node_loads_an_addon_that_was_unpacked_into_the_temp_directory(actor: Actor, addon: str) -> None:
    for name, env in (("TMPDIR unset", {}), ("TMPDIR", {"TMPDIR": "/tmp/of-mine"})):
        lay = f"{addon} && mkdir -p /tmp/of-mine"
        at_work(actor, Job(tool=f"node addon, {name}", files={"addon.c": ADDON, "t.js": UNPACK}, lay=lay, argv=script("mkdir -p ${TMPDIR:-/tmp}; exec node t.js"),
                           shows="answer 42 true", env=env))


@requirement("E.unpacked")
def test_bun_programs_unpack_their_addons_and_load_them(actor: Actor, npm_tool: Callable[..., Tool], addon: str) -> None:
    """``bun build --compile`` packs the library; the program writes it into TMPDIR and maps it."""
    at_work(actor, Job(tool="bun --compile with addon", files={"addon.c": ADDON, "t.js": BUN}, uses=npm_tool("bun"),
                       lay=f"{addon} && bun build --compile --outfile packed t.js && rm addon.node", argv=["./packed"], shows="answer 42"))


HUSKY = {"package.json": json.dumps({"name": "t", "version": "1.0.0", "scripts": {"prepare": "husky"}, "devDependencies": {"husky": "9.1.7"}})}


@requirement("E.packages")
def test_husky_hooks_run_and_cannot_be_set_up_without_the_grant(actor: Actor) -> None:
    """Set up outside, the hook runs in the box and cannot be changed there; set up inside, the grant is needed."""
    setup = "npm install --silent && echo 'echo hook ran' > .husky/pre-commit && git add -A && git commit -qm hooks"
    commit = "git commit -q --allow-empty -m x 2>&1; ! echo x 2>/dev/null >> .husky/pre-commit || test ! -e /run/stockade/box.json"
    at_work(actor, Job(tool="husky, hook", files=HUSKY, lay=setup, argv=script(commit), shows="hook ran"))
    job = Job(tool="husky, set up", files=HUSKY, argv=["npm", "install"], shows="")
    for tier, more, hooks in ((BARE, None, ".husky/_"), ("strict", (), ""), ("strict", ("--allow", "git-config", "--accept", "fs.persistence"), ".husky/_")):
        tree = laid(actor, job)
        with measured(job.tool, actor.name, f"{tier}, granted" if more else tier):
            if more is None:
                actor.call(list(job.argv), cwd=tree, env=environment(actor, job), timeout_s=200)
            else:
                stockade(actor, "run", "--tier", tier, *more, "npm", "install", cwd=tree,
                         env={**environment(actor, job), "PYTHONPATH": str(actor.stage.lib)})
            assert actor.host(f"{tree}/node_modules/husky").is_dir()
            assert actor.call(["git", "config", "core.hooksPath"], cwd=tree).stdout.decode().strip() == hooks, (tier, more)


PRE_COMMIT = """repos:
  - repo: local
    hooks:
      - {id: own, name: own, entry: sh -c 'echo looked; ! grep -r BAD README', language: system, verbose: true}
"""


@requirement("E.packages")
def test_pre_commit_runs_its_hooks_at_a_commit(actor: Actor, python_tool: Callable[..., Tool]) -> None:
    tool = python_tool("pre-commit")
    at_work(actor, Job(tool="pre-commit", files={".pre-commit-config.yaml": PRE_COMMIT}, uses=tool, lay="pre-commit install && git add -A",
                       argv=script("git commit -m good 2>&1; echo BAD >> README; ! git commit -qam bad 2>/dev/null; git log --format=%s"), shows="good\nfirst\n",
                       env={"PRE_COMMIT_HOME": f"{actor.home}/.cache/pre-commit"}, grants={"pass_env": ["PRE_COMMIT_HOME"], "write": [f"{actor.home}/.cache/pre-commit"]}))


INSPECT = """const http = require('http'), { spawn } = require('child_process');
const child = spawn(process.execPath, ['--inspect=127.0.0.1:0', '-e', 'setInterval(() => {}, 1000)'], { stdio: ['ignore', 'ignore', 'pipe'] });
child.stderr.once('data', text => {
  const port = /127\\.0\\.0\\.1:(\\d+)/.exec(text)[1];
  http.get(`http://127.0.0.1:${port}/json/version`, answer => {
    answer.on('data', body => { console.log('debugger', JSON.parse(body).Browser.startsWith('node.js')); child.kill(); });
  });
});
"""


@requirement("E.servers")
def test_a_debugger_listens_on_loopback_without_a_network(actor: Actor) -> None:
    at_work(actor, Job(tool="node --inspect", files={"t.js": INSPECT}, argv=["node", "t.js"], shows="debugger true", tiers=("strict", "guarded", "standard")))
