"""Configuration handed into a box without the secrets beside it.

Owns: the filters that a profile's ``config`` names. ``~/.npmrc`` and ``pip.conf`` hold the address
of a company's mirror and, in the same file, its token: the file stays hidden and a new one with the
harmless keys is made. Fails closed: a key that is not listed, a value that holds a login, a
substitution or a token shape is left out.
Read next: ``rules/profiles/npm.toml``, ``rules/profiles/pip.toml``.
"""

from __future__ import annotations

import re

from stockade.errors import ConfigError, nearest
from stockade.light import Callable, Iterable, Mapping, MappingProxyType
from stockade.rules.load import load_list

# Keys that name a place, a certificate or a switch. Never: anything with auth, password, token, key,
# cert, email; script-shell, shell, node-options, git, init-module, prefix, cafile of another user.
_NPM_KEYS = frozenset({
    "registry", "cafile", "strict-ssl", "fetch-retries", "fetch-timeout", "fetch-retry-mintimeout",
    "fetch-retry-maxtimeout", "maxsockets", "noproxy", "proxy", "https-proxy", "http-proxy",
    "engine-strict", "legacy-peer-deps", "strict-peer-deps", "save-exact", "save-prefix", "audit",
    "fund", "update-notifier", "loglevel", "progress", "color", "package-lock", "lockfile-version",
    "omit", "include", "omit-lockfile-registry-resolved", "replace-registry-host", "prefer-offline",
    "prefer-dedupe", "install-strategy", "install-links", "foreground-scripts", "nodedir", "tag",
    "before", "min-release-age", "allow-git", "yes", "auto-install-peers", "node-linker",
    "shamefully-hoist", "link-workspace-packages", "prefer-workspace-packages",
})
_PIP_KEYS = frozenset({
    "index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy", "timeout", "retries",
    "trusted-host", "disable-pip-version-check", "no-input", "prefer-binary", "only-binary",
    "no-binary", "progress-bar", "require-virtualenv", "use-feature", "no-color", "quiet", "verbose",
})
_GIT_KEYS = frozenset({
    "user.name", "user.email", "init.defaultbranch", "core.autocrlf", "core.eol", "core.safecrlf",
    "core.quotepath", "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode",
    "pull.rebase", "pull.ff", "push.default", "push.autosetupremote", "push.followtags",
    "rebase.autostash", "rebase.autosquash", "merge.conflictstyle", "merge.ff", "fetch.prune",
    "rerere.enabled", "diff.algorithm", "diff.renames", "color.ui", "commit.verbose", "log.date",
    "safe.directory", "http.sslcainfo", "http.sslcapath", "http.postbuffer", "advice.detachedhead",
    "column.ui", "branch.sort", "tag.sort", "submodule.recurse",
})
# user:password@ in an address; "${" and "$(" because npm substitutes the environment.
_LOGIN = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s]*@")
_NPM_SCOPE = re.compile(r"@[A-Za-z0-9][A-Za-z0-9._-]*:registry")


def derive(filter_name: str, texts: Iterable[str]) -> str:
    """Return the generated file, or "" when nothing harmless is in the host's files.

    Args: filter_name: ``npmrc``, ``pipconf`` or ``gitconfig``; texts: contents of the host's files,
    weakest first.
    Raises: ConfigError ``profile_invalid`` for an unknown filter.
    """
    function = FILTERS.get(filter_name)
    if function is None:
        raise ConfigError("profile_invalid", f"config filter {filter_name!r}: not known",
                          hint=nearest(filter_name, FILTERS))
    return function(list(texts))


def _is_secret(value: str) -> bool:
    if _LOGIN.search(value) or "${" in value or "$(" in value or "\0" in value:
        return True
    return any(_holds(value, e.prefix, e.charset, e.min_len) for e in load_list("token-shapes"))


def _holds(value: str, prefix: str, charset: str, min_len: int) -> bool:
    return prefix in value and re.search(f"{re.escape(prefix)}[{_class(charset)}]{{{min_len},}}", value) is not None


def _class(charset: str) -> str:
    tail = "\\-" if charset.endswith("-") else ""
    return charset.removesuffix("-").replace("[", "\\[").replace("]", "\\]") + tail


def _npmrc(texts: list[str]) -> str:
    lines: list[str] = []
    for text in texts:
        for raw in text.splitlines():
            key, equals, value = (part.strip() for part in raw.partition("="))
            if not equals or key[:1] in (";", "#", "[", "/"):
                continue
            name = key.removesuffix("[]")
            if (name.lower() in _NPM_KEYS or _NPM_SCOPE.fullmatch(name)) and not _is_secret(value):
                lines.append(f"{key}={value}")
    return _joined(_last_wins(lines, lambda line: line.partition("=")[0]))


def _pipconf(texts: list[str]) -> str:
    sections: dict[str, dict[str, str]] = {}
    for text in texts:
        for section, key, value in _ini(text):
            name = key.lower().replace("_", "-")
            if name in _PIP_KEYS and not _is_secret(value):
                sections.setdefault(section, {})[name] = value
    out: list[str] = []
    for section, keys in sections.items():
        out += [f"[{section}]", *(f"{k} = {v}" for k, v in keys.items())]
    return _joined(out)


def _ini(text: str) -> list[tuple[str, str, str]]:
    """Read an INI file as pip does: indented lines continue a value."""
    rows: list[tuple[str, str, str]] = []
    section = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif raw[0] in " \t" and rows:
            last = rows.pop()
            rows.append((last[0], last[1], f"{last[2]}\n    {line}".strip()))
        elif section:
            key, _, value = re.sub(r"\s*[=:]\s*", "=", line, count=1).partition("=")
            rows.append((section, key.strip(), value.strip()))
    return rows


_GIT_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\](.*)')


def _gitconfig(texts: list[str]) -> str:
    out: list[str] = []
    for text in texts:
        section, plain = "", False
        for raw in text.replace("\\\n", "").splitlines():
            line = raw.strip()
            found = _GIT_SECTION.match(line)
            if found:
                # A subsection (filter "x", url "y", credential "z") is never harmless enough.
                section, plain, line = found[1].lower(), found[2] is None, found[3].strip()
            if not line or line[0] in "#;" or not plain:
                continue
            key, equals, value = (part.strip() for part in line.partition("="))
            name = f"{section}.{key.lower()}"
            if name in _GIT_KEYS and not _is_secret(value) and not value.startswith("!"):
                out.append(f"[{section}]\n\t{key}{' = ' + value if equals else ''}")
    return _joined(out)


def _last_wins(lines: list[str], key: Callable[[str], str]) -> list[str]:
    # A list ("omit[]=dev") keeps all its lines; of a plain key the strongest file's is kept.
    kept = {line if key(line).endswith("[]") else key(line): line for line in lines}
    return list(kept.values())


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n" if lines else ""


FILTERS: Mapping[str, Callable[[list[str]], str]] = MappingProxyType({
    "npmrc": _npmrc, "pipconf": _pipconf, "gitconfig": _gitconfig,
})
