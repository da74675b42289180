"""bun: an install with a package that has a build script, a native program of it, a script, a test."""

from __future__ import annotations

import json
from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import Tool, Work, siege

PACKAGE = {"name": "t", "version": "1.0.0", "dependencies": {"esbuild": "0.21.5", "left-pad": "1.3.0"},
           "trustedDependencies": ["esbuild"],
           "scripts": {"postinstall": "sh loot.sh", "build": "esbuild in.js --bundle --platform=node --outfile=out.js"}}
FILES = {"package.json": json.dumps(PACKAGE), "in.js": "console.log(require('left-pad')('built', 9, '.'))\n",
         "t.test.js": "import { expect, test } from 'bun:test';\ntest('t', () => expect(1).toBe(1));\n", ".env": "A=b\n"}
COMMANDS = [["bun", "install"], ["bun", "run", "build"], ["bun", "test"], ["bun", "out.js"]]


@requirement("E.packages")
def test_bun_installs_and_builds_and_a_postinstall_gets_nothing(actor: Actor, npm_tool: Callable[..., Tool]) -> None:
    siege(actor, Work(
        files=FILES, commands=COMMANDS, shows="....built", clean=["node_modules", "out.js"], locks=["bun.lock"],
        caches=[".bun"], tokens=[".bunfig.toml", ".npmrc"], token_text="# planted-registry-token\n", tool=npm_tool("bun")))
