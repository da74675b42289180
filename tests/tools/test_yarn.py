"""Yarn, classic and Berry: an install with a package that has a build script, a native program of it, a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

PACKAGE = {"name": "t", "version": "1.0.0", "license": "MIT", "dependencies": {"esbuild": "0.21.5", "left-pad": "1.3.0"},
           "dependenciesMeta": {"esbuild": {"built": True}},
           "scripts": {"postinstall": "sh loot.sh", "build": "esbuild in.js --bundle --platform=node --outfile=out.js",
                       "show": "node out.js"}}
FILES = {"package.json": json.dumps(PACKAGE), "in.js": "console.log(require('left-pad')('built', 9, '.'))\n"}
COMMANDS = [["yarn", "install"], ["yarn", "run", "build"], ["yarn", "run", "show"]]
CLEAN = ["node_modules", "out.js", ".yarn", ".pnp.cjs", ".pnp.loader.mjs"]


@pytest.mark.parametrize(("package", "more"), [
    ("@yarnpkg/cli-dist", {"yarn.lock": ""}),
    ("@yarnpkg/cli-dist", {"yarn.lock": "", ".yarnrc.yml": "nodeLinker: node-modules\nenableGlobalCache: false\n"}),
    ("yarn@1", {}),
], ids=["berry", "berry-node-modules", "classic"])
@requirement("E.packages")
def test_yarn_installs_and_builds_and_a_postinstall_gets_nothing(
        actor: Actor, npm_tool: Callable[..., Tool], package: str, more: dict[str, str]) -> None:
    local = "enableGlobalCache" in str(more)  # the project keeps the cache itself, as zero-installs do
    clean = [name for name in CLEAN if not (local and name == ".yarn")]
    siege(actor, Work(
        files={**FILES, **more}, commands=COMMANDS, shows="....built", clean=clean, locks=[".yarn"],
        caches=[".yarn", ".cache/yarn"], tokens=[".yarnrc.yml" if "yarnpkg" in package else ".npmrc"],
        token_text=f"npmAuthToken: {TOKEN}\n" if "yarnpkg" in package else f"//a.invalid/:_authToken={TOKEN}\n",
        # Classic of root would keep its cache outside the home.
        tool=replace(npm_tool(package), env={"npm_config_cache_folder": f"{actor.home}/.cache/yarn"})))
