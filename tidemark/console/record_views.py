"""Records as a page shows them: bytes as text, JSON or hex, cut where they are long (pure).

Values are hostile: anything may be in them. They leave here as JSON strings, which the page puts
into text nodes alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tidemark.client.models import ConsumerRecord

FORMATS = ("auto", "text", "json", "hex")
FIELD_BYTES_MAX = 16 << 10
PAGE_BYTES_MAX = 1 << 20
_HEADERS_MAX = 50


def shown(data: bytes | None, wanted: str) -> dict[str, Any]:
    """Bytes in a format; `auto` takes JSON, text or hex, the first that fits."""
    if data is None:
        return {"as": "null", "text": "", "bytes": 0, "cut": False}
    cut = len(data) > FIELD_BYTES_MAX
    kept = data[:FIELD_BYTES_MAX]
    found = {"as": wanted, "bytes": len(data), "cut": cut}
    if wanted in ("auto", "json") and not cut and (pretty := _pretty(kept)) is not None:
        return {**found, "as": "json", "text": pretty}
    if wanted == "hex" or (wanted == "auto" and not _is_text(kept, cut)):
        return {**found, "as": "hex", "text": kept.hex(" ")}
    return {**found, "as": "text", "text": kept.decode(errors="replace")}


def _pretty(data: bytes) -> str | None:
    """JSON with an indent; None for what is no object or list, or grows too large by it."""
    if data[:1].strip() not in (b"{", b"["):
        return None
    try:
        text = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # Its indents are a multiple of what came; lone surrogates are in no text.
    return text if len(text) <= 8 * FIELD_BYTES_MAX and _encodes(text) else None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(data: bytes, cut: bool) -> bool:
    """Whether bytes are UTF-8 that can be printed; a cut may be within a character."""
    for end in range(len(data), max(len(data) - 4, -1) if cut else len(data) - 1, -1):
        try:
            text = data[:end].decode()
        except UnicodeDecodeError:
            continue
        return all(char.isprintable() or char in "\t\r\n" for char in text)
    return False


def view_of(record: ConsumerRecord, wanted: str) -> dict[str, Any]:
    """One record."""
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": shown(record.key, wanted),
        "value": shown(record.value, wanted),
        "headers": [
            {"key": key[:FIELD_BYTES_MAX], "value": shown(value, wanted)}
            for key, value in record.headers[:_HEADERS_MAX]
        ],
        "headers_left_out": max(0, len(record.headers) - _HEADERS_MAX),
    }


def views_of(records: Iterable[ConsumerRecord], wanted: str) -> Iterator[dict[str, Any]]:
    """Views of the first records that fit into `PAGE_BYTES_MAX`, and of at least one."""
    size = 0
    for record in records:
        view = view_of(record, wanted)
        is_first = size == 0
        size += len(json.dumps(view))
        if not is_first and size > PAGE_BYTES_MAX:
            return
        yield view
