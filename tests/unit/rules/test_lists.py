"""The reviewed lists: fresh, whole, free of rows that protect nothing or break ordinary tools."""

from __future__ import annotations

import fnmatch
import os
import re

import pytest

from stockade.errors import ConfigError
from stockade.rules import load, schema
from stockade.rules.load import Entry, list_names, load_list, profile_data, profile_names
from stockade.rules.promises import PROMISE_IDS


def paths(name: str) -> set[str]:
    return {entry.path for entry in load_list(name)}


def hidden(path: str) -> bool:
    """True when guarded hides this file of the home."""
    parts = path.split("/")
    for entry in load_list("credentials"):
        own = entry.path.split("/")
        if len(own) > len(parts) or not all(map(fnmatch.fnmatchcase, parts, own)):
            continue
        rest = parts[len(own):]
        if not (rest and any(fnmatch.fnmatchcase(rest[0], keep) for keep in entry.keep)):
            return True
    return False


def dropped(name: str, *lists: str) -> bool:
    return any(fnmatch.fnmatchcase(name.upper(), e.pattern.upper()) for which in lists for e in load_list(which))


def test_the_compiled_file_is_fresh() -> None:
    with open(load.COMPILED, encoding="utf-8") as stream:
        assert stream.read() == schema.compile_rules(load.RULES_DIR), "run python -m stockade.rules.load --compile"


@pytest.mark.parametrize("name", list_names())
def test_every_entry_has_an_id_of_its_own_a_reason_and_a_source(name: str) -> None:
    entries = load_list(name)
    assert len({e.id for e in entries}) == len(entries) > 0
    assert all(e.why and e.source and e.list == name for e in entries)


@pytest.mark.parametrize("name", list_names())
def test_no_entry_climbs_and_no_wildcard_swallows_a_whole_level_of_the_home(name: str) -> None:
    for entry in load_list(name):
        for path in (entry.path, *entry.paths):
            assert ".." not in path.split("/"), path
            assert path not in ("*", "~", "~/*", "/*"), path


@pytest.mark.parametrize("name", list_names())
def test_no_machine_or_registry_host_is_named(name: str) -> None:
    text = " ".join(str(e) for e in load_list(name))
    assert not re.search(r"registry\.npmjs|pypi\.org|crates\.io|/root/\.|/work/", text)


# -- credentials -----------------------------------------------------------------------------------

@pytest.mark.parametrize("entry", load_list("credentials"), ids=lambda e: e.id)
def test_every_credential_entry_can_be_attacked(entry: Entry) -> None:
    assert not entry.path.startswith("/") and entry.klass
    concrete = entry.examples or (entry.path,)
    assert all("*" not in path for path in concrete), "a pattern or directory needs examples"
    assert entry.kind == "file" or entry.examples or "*" not in entry.path
    assert all(hidden(path) for path in concrete)


@pytest.mark.parametrize("path", [
    ".ssh/id_ed25519", ".ssh/id_rsa_old", ".ssh/work.pem", ".ssh/keys/deploy", ".ssh/agent/s.1.agent.2",
    ".gnupg/private-keys-v1.d/A.key", ".aws/credentials", ".aws/sso/cache/x.json", ".kube/config",
    ".docker/config.json", ".config/gcloud/access_tokens.db", ".npmrc", ".pypirc", ".netrc", ".git-credentials",
    ".cargo/credentials", ".cargo/credentials.toml", ".config/gh/hosts.yml", ".m2/settings.xml",
    ".gradle/gradle.properties", ".terraform.d/credentials.tfrc.json", ".config/pnpm/auth.ini",
    ".config/pypoetry/auth.toml", ".local/share/uv/credentials/a", ".claude/.credentials.json", ".claude.json",
    ".claude/settings.json", ".claude/settings.local.json",
    ".codex/auth.json", ".gemini/oauth_creds.json", ".gemini/mcp-oauth-tokens.json", ".qwen/oauth_creds.json",
    ".aws/sso/cache/kiro-auth-token.json", ".local/share/kiro-cli/data.sqlite3", ".local/share/opencode/auth.json",
    ".config/goose/secrets.yaml", ".aider/oauth-keys.env", ".config/cursor/auth.json", ".copilot/config.json",
    ".local/share/amp/secrets.json", ".local/share/crush/crush.json", ".bash_history", ".python_history",
    ".config/google-chrome/Default/Cookies", ".mozilla/firefox/a/logins.json", ".password-store/a.gpg",
    ".thunderbird/a/logins.json", ".config/Signal/config.json", ".electrum/wallets/w", ".Xauthority",
    ".1password/agent.sock", ".boto", ".pgpass", ".my.cnf", ".yarnrc.yml", ".bunfig.toml", ".config/pip/pip.conf",
])
def test_known_stores_are_hidden(path: str) -> None:
    assert hidden(path)


@pytest.mark.parametrize("path", [
    ".gitconfig", ".config/git/config", ".config/git/ignore", ".ssh/config", ".ssh/known_hosts", ".ssh/id_ed25519.pub",
    ".ssh/config.d/work", ".gnupg/pubring.kbx", ".gnupg/gpg.conf", ".cargo/config.toml", ".cargo/registry/a",
    ".cargo/bin/cargo", ".rustup/settings.toml", ".npm/_cacache/a", ".cache/pip/a", ".local/bin/tool", ".bashrc",
    ".profile", ".vimrc", ".config/nvim/init.lua", ".nvm/versions/node/v20/bin/node", ".pyenv/shims/python",
    ".m2/repository/a", ".gradle/caches/a", ".docker/cli-plugins/docker-buildx", ".config/gh/config.yml",
    ".local/share/uv/python/a", ".cache/huggingface/hub/a", ".config/fish/config.fish", "Projects/app/.env",
    ".claude/CLAUDE.md", ".vscode/extensions/a", "go/pkg/mod/a",
])
def test_what_ordinary_tools_read_stays_visible_at_guarded(path: str) -> None:
    assert not hidden(path)


# -- persistence -----------------------------------------------------------------------------------

@pytest.mark.parametrize("entry", load_list("persistence"), ids=lambda e: e.id)
def test_every_persistence_entry_can_be_attacked(entry: Entry) -> None:
    assert entry.scope in ("workspace", "home", "git") and entry.klass
    for path in entry.examples or (entry.path,):
        assert "*" not in path
        parts, own = path.split("/"), entry.path.split("/")
        assert all(map(fnmatch.fnmatchcase, parts, own)) and len(parts) >= len(own), path


@pytest.mark.parametrize("entry", [e for e in load_list("persistence") if e.scope != "home"], ids=lambda e: e.id)
def test_report_patterns_are_in_the_launchers_syntax(entry: Entry) -> None:
    for pattern in entry.report or (entry.path,):
        assert not pattern.startswith("/") and "***" not in pattern
        assert all("**" not in part for part in pattern.split("/")[:-1]), "** may only end a pattern"
        assert "**" not in pattern or pattern.endswith("/**")


def test_the_named_points_are_guarded() -> None:
    guarded = {(e.scope, e.path) for e in load_list("persistence") if e.guard}
    for point in (".envrc", ".vscode", ".mcp.json", ".claude", ".cursor", ".codex", ".gemini", ".kiro", ".qwen",
                  ".amp", ".opencode", "opencode.json", "crushrc", ".crushrc", "crush.json", ".roo", ".cline",
                  ".clinerules", ".continue", ".junie", ".windsurf", ".amazonq", ".goose", ".agents", ".github/hooks",
                  ".idea", ".zed", ".husky", ".npmrc", ".cargo/config.toml", ".mvn", ".aider.conf.yml"):
        assert ("workspace", point) in guarded, point
    for point in ("hooks", "config", "config.worktree", "info/attributes", "modules/*/config", "modules/*/hooks"):
        assert ("git", point) in guarded, point
    for point in (".bashrc", ".profile", ".zshenv", ".ssh", ".gitconfig", ".config/systemd", ".config/autostart",
                  ".local/bin", ".node_modules", ".local/lib", ".tmux.conf", ".cargo/config.toml"):
        assert ("home", point) in guarded, point


def test_work_itself_is_not_guarded() -> None:
    guarded = {e.path for e in load_list("persistence") if e.guard and e.scope == "workspace"}
    for name in ("AGENTS.md", "CLAUDE.md", "conftest.py", "build.rs", "tox.ini", ".gitattributes", ".env",
                 "node_modules/.bin", ".venv/bin", "HEAD"):
        assert name not in guarded, name
    every = {e.path for e in load_list("persistence")}
    assert not every & {"Makefile", "justfile", "Taskfile.yml", "package.json", ".github/workflows"}


def test_git_keeps_working_beside_its_guards() -> None:
    # What git itself rewrites in ordinary commands must stay writable.
    written = ("HEAD", "index", "refs/heads/a", "logs/HEAD", "objects/aa/b", "FETCH_HEAD", "ORIG_HEAD", "packed-refs",
               "worktrees/a/HEAD", "worktrees/a/index", "info/exclude", "COMMIT_EDITMSG", "modules/a/HEAD")
    guarded = [entry.path.split("/") for entry in load_list("persistence") if entry.scope == "git" and entry.guard]
    assert ["hooks"] in guarded
    for own in guarded:
        for path in written:
            parts = path.split("/")
            assert not (len(own) <= len(parts) and all(map(fnmatch.fnmatchcase, parts, own))), (own, path)


# -- sockets and environment -----------------------------------------------------------------------

@pytest.mark.parametrize("entry", load_list("sockets"), ids=lambda e: e.id)
def test_every_socket_entry_names_its_power_and_where_it_lies(entry: Entry) -> None:
    assert entry.power in ("X", "R", "I", "N", "F")
    assert entry.paths and entry.examples
    assert all(re.match(r"(/|~/|\$[A-Z_]+/)", path) for path in (*entry.paths, *entry.examples))
    assert all(path.startswith("@") for path in entry.abstract)
    assert all(0 < port < 65536 for port in entry.tcp)
    for example in entry.examples:
        assert any(len(p.split("/")) == len(example.split("/"))
                   and all(map(fnmatch.fnmatchcase, example.split("/"), p.split("/"))) for p in entry.paths), example


def test_every_variable_that_names_a_socket_is_dropped() -> None:
    for entry in load_list("sockets"):
        for name in entry.env:
            assert dropped(name, "env-injection"), name
    controls = {e.pattern for e in load_list("env-injection") if e.klass == "control"}
    assert controls == {name for e in load_list("sockets") for name in e.env}


@pytest.mark.parametrize("name", ["env-secrets", "env-injection"])
def test_every_environment_pattern_has_an_example_that_it_drops(name: str) -> None:
    for entry in load_list(name):
        assert entry.pattern.strip("*_"), entry.pattern
        for example in entry.examples:
            assert fnmatch.fnmatchcase(example.upper(), entry.pattern.upper()), example


@pytest.mark.parametrize("name", [
    "NPM_TOKEN", "NODE_AUTH_TOKEN", "YARN_NPM_AUTH_TOKEN", "UV_INDEX_MAIN_PASSWORD", "UV_PUBLISH_TOKEN",
    "POETRY_PYPI_TOKEN_PYPI", "POETRY_HTTP_BASIC_X_PASSWORD", "CARGO_REGISTRY_TOKEN", "CARGO_REGISTRIES_MY_TOKEN",
    "ORG_GRADLE_PROJECT_ossrhPassword", "GIT_TOKEN", "DOCKER_AUTH_CONFIG", "GH_TOKEN", "GITHUB_TOKEN",
    "GH_ENTERPRISE_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_WEB_IDENTITY_TOKEN_FILE", "CLOUDSDK_AUTH_ACCESS_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS", "TF_TOKEN_app_terraform_io", "TF_VAR_db_password", "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN",
    "GEMINI_API_KEY", "GOOGLE_API_KEY", "KIRO_API_KEY", "OPENCODE_API_KEY", "OPENCODE_AUTH_CONTENT",
    "OPENCODE_SERVER_PASSWORD", "GOOSE_SERVER__SECRET_KEY", "OPENROUTER_API_KEY", "GITHUB_COPILOT_TOKEN",
    "CURSOR_API_KEY", "CURSOR_AUTH_TOKEN", "COPILOT_GITHUB_TOKEN", "AMP_API_KEY", "DASHSCOPE_API_KEY",
    "HYPER_API_KEY", "DATABASE_URL", "PGPASSWORD", "VAULT_TOKEN", "SLACK_WEBHOOK_URL",
])
def test_known_secret_variables_are_dropped(name: str) -> None:
    assert dropped(name, "env-secrets")


@pytest.mark.parametrize("name", [
    "LD_PRELOAD", "LD_LIBRARY_PATH", "NODE_OPTIONS", "PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME",
    "PYTHONPYCACHEPREFIX", "BASH_ENV", "ENV", "PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS",
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_KEY_0", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "RUSTC_WRAPPER", "GOFLAGS",
    "CCACHE_PREFIX", "MAKEFLAGS", "npm_config_script_shell", "NPM_CONFIG_USERCONFIG", "PIP_CONFIG_FILE",
    "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS", "TMUX", "SSH_AUTH_SOCK", "VSCODE_IPC_HOOK_CLI", "DISPLAY",
    "WAYLAND_DISPLAY", "KITTY_LISTEN_ON", "NVIM", "LISTEN_FDS", "NOTIFY_SOCKET", "BASH_FUNC_ls%%",
])
def test_known_injection_and_control_variables_are_dropped(name: str) -> None:
    assert dropped(name, "env-injection")


@pytest.mark.parametrize("name", [
    "PATH", "HOME", "LANG", "LC_ALL", "TERM", "COLORTERM", "TZ", "TMPDIR", "CI", "NO_COLOR", "SHELL", "USER", "PWD",
    "EDITOR", "PAGER", "XDG_RUNTIME_DIR", "TOKENIZERS_PARALLELISM", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "MAX_TOKENS",
    "CC", "CXX", "CFLAGS", "RUSTFLAGS", "GOPATH", "GOPROXY", "JAVA_HOME", "NODE_ENV", "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE", "HTTP_PROXY", "https_proxy", "NO_PROXY", "PIP_INDEX_URL", "npm_config_registry", "AWS_PROFILE",
    "AWS_REGION", "KUBECONFIG", "PGHOST", "GEM_HOME", "VIRTUAL_ENV", "GPG_TTY", "SSH_CONNECTION", "MONKEY", "COMPASS",
    "BYPASS", "KEYBOARD", "OLDPWD", "TERMINFO", "DEBUG", "PORT", "GIT_AUTHOR_NAME", "TURBO_CACHE_DIR", "TRACEPARENT",
])
def test_ordinary_variables_are_not_taken_for_secrets(name: str) -> None:
    assert not dropped(name, "env-secrets", "env-injection")


def test_the_allow_list_holds_no_secret_and_no_injection() -> None:
    for entry in load_list("env-allow"):
        assert not dropped(entry.pattern, "env-secrets", "env-injection"), entry.pattern
        assert len(entry.pattern.replace("*", "")) >= 2


def test_every_variable_that_moves_a_toolchain_is_allowed() -> None:
    allowed = {e.pattern for e in load_list("env-allow")}
    for entry in load_list("toolchains"):
        assert set(entry.env) <= allowed, entry.path


@pytest.mark.parametrize("entry", load_list("token-shapes"), ids=lambda e: e.id)
def test_token_shapes_match_a_token_and_no_word_or_path(entry: Entry) -> None:
    tail = "\\-" if entry.charset.endswith("-") else ""
    shape = re.compile(f"{re.escape(entry.prefix)}[{entry.charset.removesuffix('-')}{tail}]{{{entry.min_len},}}")
    letters = [c for c in map(chr, range(33, 127)) if re.fullmatch(f"[{entry.charset.removesuffix('-')}{tail}]", c)]
    token = entry.prefix + "".join(letters[i % len(letters)] for i in range(max(entry.min_len, 1)))
    assert shape.search(token)
    assert len(entry.prefix) >= 2 and (entry.min_len >= 14 or len(entry.prefix) >= 12)
    for plain in ("/usr/lib/x86_64-linux-gnu/perl-base/task-manager", "https://example.test/npm_config_registry/sk-",
                  "/home/user/core_feature_that_has_a_very_long_name_with_underscores_and_more_words",
                  "0123456789abcdef0123456789abcdef01234567", "xterm-256color:/usr/local/sbin:/usr/local/bin"):
        assert not shape.search(plain), plain


# -- system, toolchains, workspace, grants ---------------------------------------------------------

def test_strict_shows_no_secret_and_no_socket_of_the_system() -> None:
    shown = paths("system")
    assert not shown & {"/", "/etc", "/var", "/run", "/home", "/root", "/opt", "/srv", "/mnt", "/media", "/tmp",
                        "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/environment", "/etc/npmrc",
                        "/etc/pip.conf", "/etc/kubernetes", "/etc/docker", "/etc/wireguard", "/etc/machine-id"}
    for entry in load_list("system"):
        assert entry.path.startswith("/") and entry.klass in ("os", "etc", "state", "sys")
        assert entry.klass != "etc" or entry.path.startswith("/etc/")
    for entry in load_list("sockets"):
        for socket in entry.paths:
            assert not any(socket.startswith(path + "/") for path in shown if path != "/nix/store"
                           and not path.startswith("/usr")), socket


def test_names_that_would_tell_about_the_host_are_made_for_the_box() -> None:
    made = {e.path for e in load_list("system") if e.generated}
    assert {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf",
            "/etc/ssh/ssh_config"} <= made


def test_toolchains_leave_their_credentials_out() -> None:
    left_out = {e.path: set(e.except_) for e in load_list("toolchains")}
    assert {"credentials", "credentials.toml"} <= left_out["~/.cargo"]
    assert "~/.gradle" not in left_out and "~/.m2" not in left_out and "~" not in left_out
    for entry in load_list("credentials"):
        for root in left_out:
            inside = entry.path.removeprefix(root.removeprefix("~/") + "/")
            if inside != entry.path and "*" not in root:
                assert inside in left_out[root], f"{root} would show {entry.path}"


@pytest.mark.parametrize(("name", "secret"), [
    (".env", True), (".env.local", True), (".env.production", True), ("prod.env", True), ("terraform.tfstate", True),
    (".env.example", False), (".env.sample", False), (".env.template", False), (".env.local.example", False),
    (".envrc", False), ("environment.yml", False), ("main.tf", False), ("package.json", False), (".npmrc", False),
    ("tsconfig.json", False), ("id_rsa.pub", False), ("sample.env", False),
])
def test_workspace_secrets_spare_what_is_meant_to_be_shared(name: str, secret: bool) -> None:
    found = any(fnmatch.fnmatchcase(name, e.pattern) and not any(fnmatch.fnmatchcase(name, x) for x in e.except_)
                for e in load_list("workspace-secrets"))
    assert found is secret


def test_grants_carry_what_they_waive() -> None:
    grants = {e.id: e for e in load_list("grants")}
    assert grants["ssh-agent"].tiers == ("standard", "guarded")
    assert [g.id for g in grants.values() if g.tiers] == ["ssh-agent"], "nothing else is granted unasked"
    assert grants["ssh-agent"].waives == grants["gpg-agent"].waives == ()
    assert set(PROMISE_IDS) - {"env.injection"} == set(grants["docker"].waives)
    assert grants["userns"].waives == ("kernel.surface",)
    assert grants["git-config"].waives == ("fs.persistence",)
    assert all(e.klass in ("socket", "allow") for e in grants.values())


def test_every_allow_grant_opens_classes_that_exist() -> None:
    classes = {e.klass for e in load_list("persistence")}
    for entry in load_list("grants"):
        assert set(entry.match) <= classes, entry.id


def test_a_list_that_does_not_exist_is_an_error_not_an_empty_list() -> None:
    with pytest.raises(ConfigError) as caught:
        load_list("credential")
    assert caught.value.code == "rules_invalid"


def test_a_damaged_compiled_file_is_an_error_not_an_empty_list(tmp_path: os.PathLike[str],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    with open(load.COMPILED, encoding="utf-8") as stream:
        text = stream.read()
    target = os.path.join(tmp_path, "compiled.json")
    for damaged in ("", text[: len(text) // 2], text.replace("rules.v4", "rules.v9", 1),
                    text.replace('"kind":["dir",', '"kind":[', 1), text.replace('"kind":[', '"sort":[', 1)):
        with open(target, "w", encoding="utf-8") as stream:
            stream.write(damaged)
        monkeypatch.setattr(load, "COMPILED", target)
        load._content.cache_clear()
        load.load_list.cache_clear()
        with pytest.raises(ConfigError) as caught:
            load_list("credentials")
        assert caught.value.code == "rules_invalid"
    monkeypatch.undo()
    load._content.cache_clear()
    load.load_list.cache_clear()


def test_profiles_are_whole_and_each_call_gives_a_fresh_copy() -> None:
    assert {"npm", "pip", "git", "claude"} <= set(profile_names())
    profile_data("npm")["net"] = "none"
    assert profile_data("npm")["net"] == "host"
    with pytest.raises(ConfigError) as caught:
        profile_data("nmp")
    assert caught.value.code == "unknown_profile" and "npm" in caught.value.hint
