"""Records as pages show them: formats, limits, and bytes that mean harm."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.models import ConsumerRecord
from tidemark.console.record_views import (
    FIELD_BYTES_MAX,
    FORMATS,
    PAGE_BYTES_MAX,
    shown,
    view_of,
    views_of,
)


def record(offset: int, value: bytes | None, **more: object) -> ConsumerRecord:
    fields = {"timestamp_ms": 5, "key": b"k", "headers": ()} | more
    return ConsumerRecord("t", 0, offset, value=value, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "wanted", "kind", "text"),
    [
        (None, "auto", "null", ""),
        (b"", "auto", "text", ""),
        (b"plain\ttext\n", "auto", "text", "plain\ttext\n"),
        ("naïve 🌊".encode(), "auto", "text", "naïve 🌊"),
        (b'{"a":[1]}', "auto", "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a":[1]}', "text", "text", '{"a":[1]}'),
        (b"123", "auto", "text", "123"),
        (b"{broken", "json", "text", "{broken"),
        (b"\x00\xff", "auto", "hex", "00 ff"),
        (b"a\x1b[31m", "auto", "hex", "61 1b 5b 33 31 6d"),
        ("\u202eevil".encode(), "auto", "hex", "e2 80 ae 65 76 69 6c"),
        (b"\xff<", "text", "text", "\ufffd<"),
        (b"ab", "hex", "hex", "61 62"),
        (b'{"a":"\\ud800"}', "auto", "text", '{"a":"\\ud800"}'),
        (b"[" * 5_000 + b"]" * 5_000, "json", "text", "[" * 5_000 + "]" * 5_000),
    ],
)
def test_bytes_are_shown_in_the_format_that_fits(
    data: bytes | None, wanted: str, kind: str, text: str
) -> None:
    found = shown(data, wanted)
    assert (found["as"], found["text"]) == (kind, text)


def test_long_bytes_are_cut_and_their_size_is_told() -> None:
    long = "é".encode() * FIELD_BYTES_MAX
    found = shown(b"x" + long, "auto")
    assert found["cut"] and found["bytes"] == 1 + 2 * FIELD_BYTES_MAX
    assert found["as"] == "text"  # although the cut is within a character
    assert shown(b"[1]" + b" " * FIELD_BYTES_MAX, "auto")["as"] == "text"  # the rest is unknown
    assert len(shown(b"\x00" * 10 * FIELD_BYTES_MAX, "auto")["text"]) == 3 * FIELD_BYTES_MAX - 1


@given(st.binary(max_size=400), st.sampled_from(FORMATS))
def test_whatever_the_bytes_are_they_leave_as_bounded_json(data: bytes, wanted: str) -> None:
    found = shown(data, wanted)
    assert found["bytes"] == len(data) and found["as"] in ("text", "json", "hex")
    found["text"].encode()  # lone surrogates are in no text
    assert json.loads(json.dumps(found)) == found
    if found["as"] == "hex":
        assert bytes.fromhex(found["text"]) == data


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=50))
def test_json_keeps_its_value(value: object) -> None:
    found = shown(json.dumps([value]).encode(), "auto")
    if found["as"] == "json":
        assert json.loads(found["text"]) == [value]


def test_small_json_with_a_huge_indent_is_shown_as_it_came() -> None:
    data = b"[" * 60 + b",".join([b"[1]"] * 3_000) + b"]" * 60
    found = shown(data, "auto")
    assert found["as"] == "text" and len(found["text"]) == len(data)


def test_a_page_ends_before_it_is_too_large_but_has_a_record() -> None:
    big = [record(n, b"x" * FIELD_BYTES_MAX) for n in range(200)]
    views = list(views_of(big, "hex"))
    assert 1 < len(views) < 200
    assert len(json.dumps(views)) <= PAGE_BYTES_MAX + 3 * FIELD_BYTES_MAX
    headers = tuple((f"h{n}", b"v" * FIELD_BYTES_MAX) for n in range(500))
    views = list(views_of([record(0, b"", headers=headers), record(1, b"")], "hex"))
    assert [view["offset"] for view in views] == [0]


def test_headers_beyond_the_limit_are_counted() -> None:
    view = view_of(record(0, b"", headers=tuple(("h", None) for _ in range(60))), "auto")
    assert len(view["headers"]) == 50 and view["headers_left_out"] == 10
