"""The five codecs of a record batch, framed as Kafka's Java clients frame them.

gzip (RFC 1952), lz4 frames of independent 64 KiB blocks (the Java clients refuse blocks that
depend on each other, which lz4's own frame compressor makes by default), zstd frames, and snappy
in the xerial framing (8 bytes of magic, version, compatible version, then blocks with a big-endian
length each); raw snappy is read as well, other clients write it. Decompression is bounded: what a
batch claims is never believed. Arrow's codecs do the work; Arrow is loaded on first use.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

from tidemark.errors import CorruptMessageError, UnsupportedCompressionTypeError
from tidemark.records.header import COMPRESSION_NAMES, BytesLike

MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024  # one batch; a bomb stops here
_CHUNK_BYTES = 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH = struct.Struct(">i")
# Magic; version 1, independent blocks, no checksums; blocks of 64 KiB at most; header checksum.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31  # in a block's size: the block is not compressed
_LZ4_SIZE = struct.Struct("<I")
_SNAPPY_RATIO_MAX = 64  # a three-byte copy yields at most 64 bytes

# Kafka's defaults (compression.gzip.level -1 is zlib's 6, compression.zstd.level 3).
_LEVELS = {"gzip": 6, "zstd": 3}


def compression_id(name: str) -> int:
    """The codec's number in the attributes; UnsupportedCompressionTypeError for an unknown name."""
    try:
        return COMPRESSION_NAMES.index(name)
    except ValueError:
        raise UnsupportedCompressionTypeError(
            f"compression {name!r} is none of {', '.join(COMPRESSION_NAMES)}"
        ) from None


@functools.cache
def _codec(name: str) -> Any:
    import pyarrow

    level = _LEVELS.get(name)
    return pyarrow.Codec(name) if level is None else pyarrow.Codec(name, compression_level=level)


def compress(name: str, data: BytesLike) -> bytes:
    """The records of a batch, compressed by `name`; "none" gives the same bytes."""
    compression_id(name)
    if name == "none":
        return bytes(data)
    if name == "snappy":
        return _compress_xerial(memoryview(data))
    if name == "lz4":
        return _compress_lz4(memoryview(data))
    compressed: bytes = _codec(name).compress(data, asbytes=True)
    return compressed


def _compress_xerial(view: memoryview) -> bytes:
    codec = _codec("snappy")
    parts = [_XERIAL_HEADER]
    for begin in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = codec.compress(view[begin : begin + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(view: memoryview) -> bytes:
    codec = _codec("lz4_raw")
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for begin in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[begin : begin + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_SIZE.pack(0))
    return b"".join(parts)


def decompress(name: str, data: BytesLike, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> BytesLike:
    """The plain bytes of compressed records.

    Raises CorruptMessageError for data that the codec refuses, or that grows beyond `max_bytes`.
    """
    compression_id(name)
    if name == "none":
        return data
    if name == "snappy":
        return _decompress_snappy(memoryview(data), max_bytes)
    return _decompress_stream(name, data, max_bytes)


def _decompress_stream(name: str, data: BytesLike, max_bytes: int) -> bytes:
    import pyarrow

    chunks: list[bytes] = []
    total = 0
    try:
        with pyarrow.CompressedInputStream(
            pyarrow.BufferReader(pyarrow.py_buffer(data)), name
        ) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                total += len(chunk)
                if total > max_bytes:
                    raise CorruptMessageError(
                        f"a batch grows beyond {max_bytes} bytes when decompressed"
                    )
                chunks.append(chunk)
    except (OSError, ValueError) as error:
        raise CorruptMessageError(f"{name} can not decompress the batch: {error}") from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decompress_snappy(view: memoryview, max_bytes: int) -> bytes:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_block(view, max_bytes)
    position = len(_XERIAL_HEADER)
    parts: list[bytes] = []
    total = 0
    while position < len(view):
        if len(view) - position < 4:
            raise CorruptMessageError("a snappy block's length is cut off")
        (size,) = _LENGTH.unpack_from(view, position)
        position += 4
        if not 0 < size <= len(view) - position:
            raise CorruptMessageError(f"a snappy block of {size} bytes is cut off")
        block = _decompress_block(view[position : position + size], max_bytes - total)
        total += len(block)
        parts.append(block)
        position += size
    return b"".join(parts)


def _decompress_block(block: memoryview, max_bytes: int) -> bytes:
    size = _snappy_size(block)
    if size > max_bytes or size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptMessageError(f"a snappy block of {len(block)} bytes claims {size}")
    try:
        plain: bytes = _codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    except (OSError, ValueError) as error:
        raise CorruptMessageError(f"snappy can not decompress the batch: {error}") from error
    return plain


def _snappy_size(block: memoryview) -> int:
    """The varint before a raw block: its plain size."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptMessageError("a snappy block's size is malformed")
