"""Records as text, and text as records, for `tidemark consume` and `tidemark produce`.

Bytes are neither decoded nor replaced in text: what was produced comes out. The tokens of a format
are those of kcat.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.models import ConsumerRecord

Show = Callable[["ConsumerRecord"], bytes]

_TOKEN = re.compile(r"%(.?)", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_IGNORED = {"topic", "partition", "offset"}  # of a record that is produced anew
_KNOWN = {"key", "value", "headers", "timestamp"}


class Fields(NamedTuple):
    """The parts of a record that a producer chooses."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def unescape(text: str) -> bytes:
    r"""The bytes of an option's text, in which \n, \r, \t, \0, \\ and \xNN are escapes. Raises
    ConfigError for another one."""
    parts, end = [], 0
    for found in _ESCAPE.finditer(text):
        name = found.group(1)
        if name not in _ESCAPES and len(name) < 3:
            raise ConfigError(f"{text!r}: unknown escape {found.group()!r}; \\n \\r \\t \\0 \\xNN")
        parts.append(text[end : found.start()].encode())
        escaped = bytes([int(name[1:], 16)]) if len(name) == 3 else _ESCAPES[name].encode()
        parts.append(escaped)
        end = found.end()
    return b"".join([*parts, text[end:].encode()])


def by_format(text: str, null: bytes) -> Show:
    r"""Shows records by tokens. %t is the topic, %p the partition, %o the offset, %T the timestamp
    in ms, %k the key, %s the value. %K and %S are their sizes, -1 for none. %h is for headers, %%
    for a percent sign. The text may have escapes, such as \n. Raises ConfigError.
    """
    tokens: dict[str, Show] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp_ms,
        "k": lambda record: _or(record.key, null),
        "s": lambda record: _or(record.value, null),
        "K": lambda record: b"%d" % _size(record.key),
        "S": lambda record: b"%d" % _size(record.value),
        "h": lambda record: _headers(record, b"=", null),
        "%": lambda _: b"%",
    }
    parts: list[Show | bytes] = []
    end = 0
    for found in _TOKEN.finditer(text):
        if found.group(1) not in tokens:
            known = " ".join(f"%{name}" for name in tokens)
            raise ConfigError(f"--format: unknown token {found.group()!r}; known are {known}")
        parts += [unescape(text[end : found.start()]), tokens[found.group(1)]]
        end = found.end()
    parts.append(unescape(text[end:]))
    return lambda record: b"".join(
        part if isinstance(part, bytes) else part(record) for part in parts
    )


def by_fields(names: Sequence[str], null: bytes) -> Show:
    """Shows some of timestamp, partition, offset, headers and key, each before a tab, then the
    value and a line feed: as Kafka's console consumer does."""
    fields: dict[str, Show] = {
        "timestamp": lambda record: b"Timestamp:%d" % record.timestamp_ms,
        "partition": lambda record: b"Partition:%d" % record.partition,
        "offset": lambda record: b"Offset:%d" % record.offset,
        "headers": lambda record: _headers(record, b":", null) or b"NO_HEADERS",
        "key": lambda record: _or(record.key, null),
    }
    shown = [show for name, show in fields.items() if name in names]
    shown.append(lambda record: _or(record.value, null))
    return lambda record: b"\t".join(show(record) for show in shown) + b"\n"


def as_json_line(record: ConsumerRecord) -> bytes:
    """One line of JSON; `fields_of_json` reads it."""
    return json.dumps(json_record(record), ensure_ascii=False).encode() + b"\n"


def json_record(record: ConsumerRecord) -> dict[str, Any]:
    """A record as JSON's types; bytes that are no UTF-8 become {"base64": ...}."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[key, _to_json(value)] for key, value in record.headers],
    }


def fields_of_json(line: bytes) -> Fields:
    """A record from what `json_record` made of one. Its topic, partition and offset do not count.
    Raises ConfigError."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"a line is no JSON ({error}): {line[:60]!r}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"a line is no JSON object: {line[:60]!r}")
    unknown = sorted(found.keys() - _KNOWN - _IGNORED)
    if unknown or "value" not in found:
        problem = f"has {unknown[0]!r}" if unknown else "has no value"
        known = ", ".join(sorted(_KNOWN))
        raise ConfigError(f"a record {problem}; its members are {known}: {line[:60]!r}")
    timestamp_ms = found.get("timestamp")
    if timestamp_ms is not None and type(timestamp_ms) is not int:
        raise ConfigError(f"a timestamp is no number of ms: {line[:60]!r}")
    headers = found.get("headers") or []
    try:
        pairs = tuple((name, _of_json(value)) for name, value in headers)
    except (TypeError, ValueError):
        raise ConfigError(f"headers are no list of [name, value]: {line[:60]!r}") from None
    return Fields(_of_json(found["value"]), _of_json(found.get("key")), pairs, timestamp_ms)


def _or(data: bytes | None, null: bytes) -> bytes:
    return null if data is None else data


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: ConsumerRecord, between: bytes, null: bytes) -> bytes:
    return b",".join(name.encode() + between + _or(value, null) for name, value in record.headers)


def _to_json(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _of_json(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ConfigError(f"base64: {error}: {value['base64'][:60]!r}") from None
    raise ConfigError(f'{value!r} is neither text, null nor {{"base64": text}}')
