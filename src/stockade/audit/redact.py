"""What must not stand in a record: found in texts, and taken out before anything is clipped.

Owns: the order (key blocks, addresses, token shapes, named values, random words behind a secret's name) and the names
that make a value a secret. Redacting comes before clipping: half a token has no shape.
Fails closed: a value behind a secret's name is taken out whatever it looks like; the names of files, numbers and
switches that such names have too are left. Read next: ``rules/token-shapes.toml``.
"""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import pairwise

from stockade.environment import charset_class, token_shapes

MARK = "[redacted]"
MAX_WORD = 2048
# A random word: 20 characters with 3.5 bits each are 70 bits, more than any word of a language has.
RANDOM_LENGTH, RANDOM_BITS = 20, 3.5

_SECRET = frozenset({
    "token", "tokens", "secret", "secrets", "password", "passwd", "pwd", "pass", "passphrase", "apikey", "credential",
    "credentials", "authorization", "bearer", "cookie", "pat", "pin", "otp", "auth", "signature", "sig", "jwt",
    "psk", "dsn",
})  # fmt: skip
_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("signing", "key"),
                    ("encryption", "key"), ("session", "key"), ("account", "key"), ("connection", "string"),
                    ("session", "id")})
# Behind a secret's name these make it the name of something that is told openly.
_OPEN = frozenset({
    "file", "path", "dir", "directory", "name", "names", "type", "kind", "length", "size", "limit", "count", "max",
    "min", "url", "uri", "endpoint", "host", "port", "ttl", "timeout", "expiry", "stdin", "prompt", "mode", "method",
    "store", "helper", "manager", "policy", "format", "algorithm", "version", "enabled", "required", "user", "sock",
    "fd", "command",
})  # fmt: skip
_PLAIN_VALUE = re.compile(r"(?:\d{1,10}|true|false|yes|no|on|off|none|null|auto)?", re.IGNORECASE)
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
_ADDRESS = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{0,30}://)([^\s/@'\"]+)@")
_NAMED = re.compile(r"""(?<![A-Za-z0-9_-])(-{0,2}[A-Za-z_][A-Za-z0-9_.-]{0,80})(["']?\s*[=:]\s*["']?)([^\s"'&;,]+)""")
_AUTHORIZATION = re.compile(r"(?i)\b((?:proxy-)?authorization\s*:\s*)([^\r\n]+)")
_WORD = re.compile(r"[A-Za-z0-9+/=_~.-]{20,}")
_WORDS_NEAR = 4


def redacted(text: str) -> str:
    """Return a text without its secrets."""
    text = _KEY_BLOCK.sub(MARK, text)
    text = _ADDRESS.sub(_address, text)
    text = _AUTHORIZATION.sub(rf"\1{MARK}", text)
    text = _shapes().sub(MARK, text)
    text = _NAMED.sub(_named, text)
    return _random_words(text)


def clipped(text: str, limit: int = MAX_WORD) -> str:
    """Return a text of at most ``limit`` characters that says how much is gone; redact before."""
    return text if len(text) <= limit else f"{text[:limit]}[{len(text) - limit} more]"


def names_a_secret(name: str) -> bool:
    """Tell whether what has this name is a secret: ``--api-key``, ``GITHUB_TOKEN``, ``clientSecret``."""
    parts = [part.lower() for part in _NAME_PARTS.findall(name)]
    if not parts or parts[-1] in _OPEN:
        return False
    if parts[-1] == "tokens" and len(parts) > 1 and parts[-2] in ("max", "min", "num", "n", "total", "new", "output"):
        return False
    return any(part in _SECRET for part in parts) or any(pair in _PAIRS for pair in pairwise(parts))


def bits_per_character(word: str) -> float:
    """Return the entropy of a word's own distribution of characters, in bits."""
    counts = [word.count(letter) for letter in set(word)]
    return -sum(count / len(word) * math.log2(count / len(word)) for count in counts)


@cache
def _shapes() -> re.Pattern[str]:
    return re.compile("|".join(f"{re.escape(s.prefix)}[{charset_class(s.charset)}]{{{s.min_len},}}"
                               for s in token_shapes()))


def _address(found: re.Match[str]) -> str:
    user, colon, _ = found[2].partition(":")
    if colon:
        return f"{found[1]}{user}:{MARK}@" if not is_random(user) else f"{found[1]}{MARK}@"
    return f"{found[1]}{MARK}@" if len(user) >= RANDOM_LENGTH else found[0]


def _named(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    if not names_a_secret(name) or _PLAIN_VALUE.fullmatch(value) or value.startswith(MARK):
        return found[0]
    return f"{name}{equals}{MARK}"


def is_random(word: str) -> bool:
    """Tell whether a word has the length and the entropy of a generated secret."""
    return len(word) >= RANDOM_LENGTH and bits_per_character(word) >= RANDOM_BITS


def _random_words(text: str) -> str:
    """Take out random words that stand behind a secret's name, with at most a few words between."""
    def taken(found: re.Match[str]) -> str:
        before = text[max(0, found.start() - 80):found.start()].split()[-_WORDS_NEAR:]
        named = is_random(found[0]) and any(names_a_secret(word.strip(":='\"(")) for word in before)
        return MARK if named else found[0]

    return _WORD.sub(taken, text)
