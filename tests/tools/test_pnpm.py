"""pnpm: an install with a package that has a build script, a native program of it, a script of the project."""

from __future__ import annotations

import json
from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import Tool, Work, siege

PACKAGE = {"name": "t", "version": "1.0.0", "dependencies": {"esbuild": "0.21.5", "left-pad": "1.3.0"},
           "scripts": {"postinstall": "sh loot.sh", "build": "esbuild in.js --bundle --platform=node --outfile=out.js",
                       "show": "node out.js"}}
FILES = {"package.json": json.dumps(PACKAGE), "in.js": "console.log(require('left-pad')('built', 9, '.'))\n",
         "pnpm-workspace.yaml": "allowBuilds:\n  esbuild: true\n"}


@requirement("E.packages")
def test_pnpm_installs_and_builds_and_a_postinstall_gets_nothing(actor: Actor, npm_tool: Callable[..., Tool]) -> None:
    siege(actor, Work(
        files=FILES, commands=[["pnpm", "install"], ["pnpm", "run", "build"], ["pnpm", "run", "show"]], shows="....built",
        clean=["node_modules", "out.js"], locks=["pnpm-lock.yaml"], caches=[".local/share/pnpm", ".cache/pnpm", ".local/state/pnpm"],
        tokens=[".npmrc", ".config/pnpm/auth.ini"], tool=npm_tool("pnpm")))
