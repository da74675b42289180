"""Trust in a project's ``.stockade.toml``: by content, given by a person.

Owns: the trust file of the state home. Fails closed: no entry, another digest or an unreadable
trust file means not trusted; what the project file narrows counts all the same.
Read next: ``stockade.rules.settings``.
"""

from __future__ import annotations

import time

from stockade.errors import ConfigError
from stockade.ids import digest
from stockade.jsontext import loads
from stockade.paths import StateHome, atomic_write
from stockade.rules.files import Document, read_checked
from stockade.rules.looked import Looked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCHEMA = "stockade.trust.v1"


def is_trusted(state: StateHome, document: Document, looked: Looked | None = None) -> bool:
    """Tell whether a person trusted exactly this content under exactly this path."""
    entry = _entries(state, looked).get(document.path)
    return isinstance(entry, dict) and entry.get("digest") == digest(document.text.encode("utf-8"))


def trusted_text(state: StateHome, path: str) -> str | None:
    """Return the content that was trusted last, for a diff, or None."""
    entry = _entries(state).get(path)
    text = entry.get("text") if isinstance(entry, dict) else None
    return text if isinstance(text, str) else None


def trust(state: StateHome, document: Document) -> str:
    """Record trust in the content that was read and shown; return its digest.

    The document is what the person saw: the file is not read again, so a change in between is
    not trusted.
    """
    mark = digest(document.text.encode("utf-8"))
    entries = {**_entries(state), document.path: {"digest": mark, "text": document.text, "at_s": int(time.time())}}
    _save(state, entries)
    return mark


def untrust(state: StateHome, path: str) -> bool:
    """Forget trust in a path; tell whether there was any."""
    entries = _entries(state)
    if entries.pop(path, None) is None:
        return False
    _save(state, entries)
    return True


def _entries(state: StateHome, looked: Looked | None = None) -> dict[str, Any]:
    raw = read_checked(str(state.trust_file), "config_invalid", looked=looked)
    if raw is None:
        return {}
    try:
        data = loads(raw)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError("config_invalid", f"file {str(state.trust_file)!r}: {reason}",
                          hint="remove the file; projects must be trusted again") from None
    entries = data.get("files") if isinstance(data, dict) and data.get("schema") == _SCHEMA else None
    if not isinstance(entries, dict):
        raise ConfigError("config_invalid", f"file {str(state.trust_file)!r}: got no {_SCHEMA} document",
                          hint="remove the file; projects must be trusted again")
    return entries


def _save(state: StateHome, entries: dict[str, Any]) -> None:
    import json

    text = json.dumps({"schema": _SCHEMA, "files": entries}, sort_keys=True, indent=1)
    atomic_write(state.trust_file, text.encode("utf-8"))
