"""Our way to JSON gives what the standard module gives, for every text and every value."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade import jsontext

SRC = str(Path(__file__).resolve().parents[2] / "src")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12)
TEXTS = st.text(alphabet='{}[]",:0123456789.eE+-ntrufalsNIy\\ \t\n\r\x00\ufeffä\ud800', max_size=24)


def outcome(call: Any, text: str) -> tuple[str, str]:
    """The value in full, or that there is none."""
    try:
        return "value", repr(call(text))
    except ValueError:
        return "refused", ""


@given(TEXTS)
def test_a_text_is_read_or_refused_as_the_standard_module_does(text: str) -> None:
    assert outcome(jsontext.loads, text) == outcome(json.loads, text)


@given(VALUES, st.booleans(), st.booleans(), st.booleans())
def test_a_value_is_written_as_the_standard_module_does(value: Any, sort: bool, ascii_only: bool, compact: bool) -> None:
    separators = (",", ":") if compact else None
    expected = json.dumps(value, sort_keys=sort, ensure_ascii=ascii_only, separators=separators)
    assert jsontext.dumps(value, sort_keys=sort, ascii_only=ascii_only, compact=compact) == expected
    assert jsontext.loads(expected) == json.loads(expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1j: 2}])
def test_what_json_has_no_text_for_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        jsontext.dumps(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError):
        jsontext.dumps(value)


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(ValueError):
        jsontext.loads(b'"\xff"')


def test_an_interpreter_without_the_c_parts_reads_and_writes_the_same() -> None:
    script = ("import sys; sys.modules['_json'] = None\n"
              "from stockade import jsontext\n"
              "assert jsontext._scan is None\n"
              "print(jsontext.dumps(jsontext.loads('{\"b\": [1, \"ä\"], \"a\": null}'), sort_keys=True, compact=True))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == '{"a":null,"b":[1,"\\u00e4"]}\n'


BROKEN = ['{"a":', '{"a" 1}', '{1: 2}', '[1,]', '"\\x"', '"a', "{'a': 1}", '{"a":1,}', '"\n"', "nul", ""]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_text_is_an_error_of_ours_also_before_the_standard_module_was_loaded(text: str) -> None:
    code = ("import sys; sys.path.insert(0, sys.argv[1])\nfrom stockade.jsontext import loads\nassert 'json' not in sys.modules\n"
            "try: loads(sys.argv[2])\nexcept ValueError: print('refused')")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, SRC, text], capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr
