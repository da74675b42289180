"""The environment filter: which variables a box gets.

Owns: compiling the policy of a tier into the plan's ``env`` object, and applying it here for
``explain`` and unconfined starts with exactly the launcher's meaning.
Fails closed: a variable that no rule keeps is dropped in mode ``allow``; of two variables with
one name the later is dropped; values never enter a policy, an error or a log.
Read next: ``launcher/src/steps/env.rs``, the same rules in the launcher.
"""

from __future__ import annotations

from stockade.errors import ConfigError
from stockade.frozen import dataclass, field
from stockade.light import Callable, Iterable, Mapping, memo
from stockade.rules.load import load_list
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.rules.resolve import Resolved

# Distributed tracing context: identifiers alone, and a trace that ends at the box helps nobody.
TRACING = ("TRACEPARENT", "TRACESTATE", "BAGGAGE", "OTEL_TRACEPARENT", "OTEL_TRACESTATE", "OTEL_BAGGAGE")

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShape:
    """A known form of secret: ``prefix`` followed by at least ``min_len`` characters of ``charset``."""

    name: str
    prefix: str
    charset: str
    min_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvPolicy:
    """The ``env`` object of a plan: names and shapes, never the value of a secret.

    Order of the rules: set-fd, ``set``, ``keep``; then in mode ``allow`` everything else is
    dropped; in mode ``deny`` names of ``drop`` and values of ``drop_values`` are dropped.
    """

    mode: str
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    drop_values: tuple[TokenShape, ...] = ()
    set: tuple[Pair, ...] = ()

    def to_plan(self) -> dict[str, Any]:
        """Return the object as the plan schema wants it."""
        shapes = [{"name": s.name, "prefix": s.prefix, "charset": s.charset, "min_len": s.min_len}
                  for s in self.drop_values]
        return {"mode": self.mode, "keep": list(self.keep), "drop": list(self.drop),
                "drop_values": shapes, "set": dict(self.set)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvResult:
    """What became of an environment. ``reasons`` maps each dropped name to the rule that dropped it."""

    kept: dict[str, str] = field(repr=False)
    dropped: list[str]
    reasons: dict[str, str]


def compile_env(resolved: Resolved, *, tier: Tier | None = None,
                extra_set: Mapping[str, str] | None = None) -> EnvPolicy:
    """Compile the policy of a request at ``tier`` (default: the tier it resolved to).

    Args: extra_set: literal values the plan itself needs, such as TMPDIR; never a secret.
    A tier of ``off`` keeps the environment promises of standard.
    """
    level = max(resolved.tier if tier is None else tier, Tier.standard)
    keep = [*TRACING, *resolved.env_keep]
    literal = {**dict(resolved.profile_set_env), **(extra_set or {})}
    # Profiles and plans set literals; a caller's value for the same name arrives by the set-fd, wins.
    pairs = tuple(sorted(literal.items()))
    if level >= Tier.strict:
        keep += _patterns("env-allow")
        return EnvPolicy(mode="allow", keep=_unique(keep), set=pairs)
    drop = _unique([*_patterns("env-secrets"), *_patterns("env-injection")])
    shapes = token_shapes() if level >= Tier.guarded else ()
    return EnvPolicy(mode="deny", keep=_unique(keep), drop=drop, drop_values=shapes, set=pairs)


def secret_names() -> tuple[str, ...]:
    """Return the patterns of ``rules/env-secrets.toml``."""
    return _unique(_patterns("env-secrets"))


def name_matches(patterns: tuple[str, ...], name: str) -> bool:
    """Tell whether a rule that drops names applies to this one."""
    return _names(patterns, fold=True)(name)


def _patterns(name: str) -> list[str]:
    return [entry.pattern or entry.id for entry in load_list(name)]


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


@memo(maxsize=1)
def token_shapes() -> tuple[TokenShape, ...]:
    """Return the reviewed token shapes of ``rules/token-shapes.toml``."""
    return tuple(TokenShape(name=e.name or e.id, prefix=e.prefix, charset=e.charset, min_len=e.min_len)
                 for e in load_list("token-shapes"))


def apply(policy: EnvPolicy, environ: Mapping[str, str] | Iterable[Pair],
          set_env: Mapping[str, str] | Iterable[Pair] = ()) -> EnvResult:
    """Filter ``environ`` as the launcher does. ``set_env`` are the caller's explicit values.

    Returns: kept (the whole environment of the command), dropped names (sorted), reasons. A name
    whose second value was withheld is in both.
    """
    given, literal = dict(set_env), dict(policy.set)
    kept: dict[str, str] = {}
    reasons: dict[str, str] = {}
    verdict = _verdict(policy)
    seen: set[str] = set()
    for name, value in (environ.items() if isinstance(environ, Mapping) else environ):
        if name in seen:
            # getenv answers the first; a filter that judged only one of two could be walked around.
            reasons.setdefault(name, "duplicate")
            continue
        seen.add(name)
        if name in given or name in literal:
            continue
        why = verdict(name, value) if _is_variable(name, value) else "not a variable"
        if why is None:
            kept[name] = value
        else:
            reasons[name] = why
    return EnvResult(kept={**kept, **literal, **given}, dropped=sorted(reasons), reasons=reasons)


def _is_variable(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name and "\0" not in value


def _verdict(policy: EnvPolicy) -> Callable[[str, str], str | None]:
    """Return a function that names the rule which drops a variable, or None to keep it."""
    keep = _names(policy.keep, fold=False)
    if policy.mode == "allow":
        return lambda name, value: None if keep(name) else "not on the allow-list"
    if policy.mode != "deny":
        raise ConfigError("plan_invalid", f"env.mode {policy.mode!r}: expected allow or deny")
    drop = _names(policy.drop, fold=True)
    shape = _shapes(policy.drop_values)

    def decide(name: str, value: str) -> str | None:
        if keep(name):
            return None
        if drop(name):
            return "name"
        found = shape(value)
        return f"value: {found}" if found else None
    return decide


@memo(maxsize=64)
def _names(patterns: tuple[str, ...], *, fold: bool) -> Callable[[str], bool]:
    """Compile literals to a set and wildcard patterns to one expression; ``fold`` ignores ASCII case."""
    import re  # a start compiles a policy and does not apply it: that is the launcher's

    alike = _ascii_lower if fold else str
    exact = frozenset(alike(p) for p in patterns if "*" not in p)
    wild = [_expression(alike(p)) for p in patterns if "*" in p]
    match = re.compile("|".join(wild), re.DOTALL).fullmatch if wild else None
    return lambda name: alike(name) in exact or (match is not None and match(alike(name)) is not None)


def _expression(pattern: str) -> str:
    """Turn ``A*B*C`` into an expression that is linear in the length of the name.

    Each inner part is an atomic group: taking its first place is always as good as a later one,
    and without backtracking a hostile name of 100 kB cannot stall the filter.
    """
    import re

    first, *inner, last = re.split(r"\*+", pattern)
    middle = "".join(f"(?>.*?{re.escape(part)})" for part in inner)
    return f"(?:{re.escape(first)}{middle}.*{re.escape(last)})"


def _ascii_lower(text: str) -> str:
    return text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)


@memo(maxsize=16)
def _shapes(shapes: tuple[TokenShape, ...]) -> Callable[[str], str | None]:
    """Return a search for any shape anywhere in a value; linear in the length of the value."""
    import re

    compiled = [(s.name, s.prefix, re.compile(re.escape(s.prefix) + f"[{charset_class(s.charset)}]{{{s.min_len}}}"))
                for s in shapes]

    def search(value: str) -> str | None:
        for name, prefix, expression in compiled:
            # `in` rejects nearly every value without the expression engine.
            if prefix in value and expression.search(value):
                return name
        return None
    return search


def charset_class(text: str) -> str:
    """Turn ``A-Za-z0-9_-`` into the body of a character class; a ``-`` at the end is itself."""
    import re

    out, index = [], 0
    while index < len(text):
        if index + 2 < len(text) and text[index + 1] == "-":
            out.append(f"{re.escape(text[index])}-{re.escape(text[index + 2])}")
            index += 3
        else:
            out.append(re.escape(text[index]))
            index += 1
    return "".join(out)
