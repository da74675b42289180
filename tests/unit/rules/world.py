"""A home with a repository and configuration files on demand, for the tests of requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stockade.paths import StateHome, state_home
from stockade.rules.request import build_request
from stockade.rules.resolve import Resolved, resolve
from stockade.rules.settings import load_settings

HEAD = 'schema = "profile.v1"\ndescription = "d"\n'


class World:
    """A home with a repository in it, an empty system directory, and files on demand.

    What belongs to root in /etc/stockade belongs to the account of the test run there.
    """

    def __init__(self, base: Path) -> None:
        self.home, self.etc = base / "home", base / "etc"
        self.repo = self.home / "repo"
        self.conf = self.home / ".config/stockade"
        for directory in (self.repo / ".git", self.repo / "sub", self.conf / "profiles", self.etc):
            directory.mkdir(parents=True)
        (self.repo / ".git/HEAD").write_text("ref: refs/heads/main\n")
        self.env: dict[str, str] = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}

    @property
    def state(self) -> StateHome:
        return state_home(self.env)

    def config(self, text: str) -> None:
        (self.conf / "config.toml").write_text(text)

    def project(self, text: str) -> None:
        (self.repo / ".stockade.toml").write_text(text)

    def policy(self, text: str) -> None:
        (self.conf / "policy.toml").write_text(text)

    def profile(self, name: str, text: str) -> None:
        (self.conf / f"profiles/{name}.toml").write_text(HEAD + text)

    def resolve(self, *argv: str, **options: Any) -> Resolved:
        options = {"cwd": self.repo / "sub", "caller": "operator", **options}
        request = build_request(list(argv) or ["tool"], env=self.env, **options)
        return resolve(request, load_settings(request, system_dir=str(self.etc), root_uid=os.geteuid()))
