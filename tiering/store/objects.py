"""Reads of a segment's sidecar from a store: the table, and parts, each checked.

They block as the store does. A reader keeps the table: it has the checksums of the log's chunks,
and the parts are fetched by it.
"""

from __future__ import annotations

from collections.abc import Collection

from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.manager import IndexType, RemoteStorageManager
from tiering.store.sidecar import HEAD_BYTES, SegmentTable, decode_table, pin_of, table_bytes


def fetch_table(storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> SegmentTable:
    """Fetches the table of a segment's sidecar; in one request, if the metadata has the pin.

    Raises CorruptRemoteObjectError, and the errors of the store.
    """
    pin = pin_of(metadata)
    if pin is not None:
        content = storage.fetch_sidecar(metadata, 0, pin.table_bytes)
    else:
        head = storage.fetch_sidecar(metadata, 0, HEAD_BYTES)
        content = storage.fetch_sidecar(metadata, 0, table_bytes(head, metadata))
    return decode_table(content, metadata)


def fetch_parts(
    storage: RemoteStorageManager,
    metadata: RemoteLogSegmentMetadata,
    table: SegmentTable,
    kinds: Collection[IndexType],
) -> dict[IndexType, bytes]:
    """Fetches parts in one request: neighbours, or a range that has others between them.

    Raises CorruptRemoteObjectError, RemoteResourceNotFoundError if the segment lacks one of
    `kinds`, and the errors of the store.
    """
    parts = {kind: table.part(kind) for kind in kinds}
    first = min(part.position for part in parts.values())
    end = max(part.position + part.length for part in parts.values())
    content = storage.fetch_sidecar(metadata, first, end) if end > first else b""
    return {
        kind: table.check_part(
            kind, content[part.position - first : part.position - first + part.length]
        )
        for kind, part in parts.items()
    }


def fetch_part(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, kind: IndexType
) -> bytes:
    """Fetches the table, then the one part. Raises as `fetch_parts`."""
    return fetch_parts(storage, metadata, fetch_table(storage, metadata), [kind])[kind]
