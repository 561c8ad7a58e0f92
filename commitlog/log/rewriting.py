"""Changes the codec of a batch, for topics whose compression.type is not the producer's.

Only the section behind the header is decompressed and compressed again. Records, offsets, producer
and sequence stay the same. Kafka's LogValidator rebuilds such batches record by record.
"""

from __future__ import annotations

import functools

from tidemark.records import compression as codecs
from tidemark.records.header import (
    CODEC_MASK,
    COMPRESSION_NAMES,
    CONTROL_FLAG,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    signed,
)
from tidemark.records.header import BatchHeader as Header

_KEPT_FLAGS = TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG


@functools.cache
def wanted_codec(compression_type: str) -> int | None:
    """Returns the codec of a topic's compression.type; None for `producer`."""
    if compression_type == "producer":
        return None
    return codecs.compression_id("none" if compression_type == "uncompressed" else compression_type)


def recompress(view: memoryview, header: Header, codec: int) -> bytes:
    """Returns the batch at `header.position` of `view`, its records compressed by `codec`. Its
    header is `header`, without flags that no client's batch has (Kafka builds a new header).

    Raises CorruptMessageError if its records can not be decompressed, and
    UnsupportedCompressionTypeError for an unknown codec.
    """
    begin, end = header.position, header.end_position
    own = header.attributes & CODEC_MASK
    if own >= len(COMPRESSION_NAMES):
        own = codecs.compression_id(f"number {own}")
    plain = codecs.decompress(COMPRESSION_NAMES[own], view[begin + HEADER_BYTES : end])
    body = codecs.compress(COMPRESSION_NAMES[codec], plain)
    changed = header._replace(
        batch_length=HEADER_BYTES - OVERHEAD_BYTES + len(body),
        crc=0,
        attributes=header.attributes & _KEPT_FLAGS | codec,
    )
    return signed(changed.packed, body)
