"""The five codecs of a record batch, framed as Kafka's Java clients frame them.

- gzip: RFC 1952, by Python's zlib. Arrow's codecs, loaded on first use, do the rest.
- lz4: frames of independent 64 KiB blocks. The Java clients refuse blocks that depend on each
  other, which lz4's own frame compressor makes by default.
- zstd: frames of RFC 8878.
- snappy: xerial framing, which is 8 bytes of magic, a version, a compatible version, then blocks
  with a big-endian length each. Raw snappy, which other clients write, is read as well.

Several members or frames in sequence are read. Decompression is bounded: no size that a batch
claims is trusted.
"""

from __future__ import annotations

import functools
import struct
import zlib
from typing import Any

from tidemark.errors import CorruptMessageError, UnsupportedCompressionTypeError
from tidemark.records.header import COMPRESSION_NAMES, BytesLike

# Limits for one batch, against decompression bombs. A batch grows at most a thousandfold, or up to
# an amount that is always allowed.
MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
MAX_GROWTH = 1000
ANY_GROWTH_BYTES = 64 * 1024 * 1024

_CHUNK_BYTES = 1024 * 1024

_GZIP = 16 + zlib.MAX_WBITS  # zlib's number for a stream with gzip's header and trailer
_GZIP_LEVEL = 6  # Kafka's default: compression.gzip.level -1 is zlib's 6
_ZSTD_LEVEL = 3  # Kafka's compression.zstd.level

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH = struct.Struct(">i")
# Magic; version 1, independent blocks, no checksums; blocks of 64 KiB at most; header checksum.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31  # flag in a block's size: the block is not compressed
_LZ4_SIZE = struct.Struct("<I")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_BYTES_MAX = 18
_SNAPPY_RATIO_MAX = 64  # a three-byte copy yields at most 64 bytes


def compression_id(name: str) -> int:
    """Returns the codec's number in the attributes. Raises UnsupportedCompressionTypeError for an
    unknown name.
    """
    try:
        return COMPRESSION_NAMES.index(name)
    except ValueError:
        raise UnsupportedCompressionTypeError(
            f"compression {name!r} is none of {', '.join(COMPRESSION_NAMES)}"
        ) from None


@functools.cache
def _codec(name: str) -> Any:
    import pyarrow

    level = _ZSTD_LEVEL if name == "zstd" else None
    return pyarrow.Codec(name, compression_level=level)


def compress(name: str, data: BytesLike) -> bytes:
    """Compresses the records of a batch by the codec `name`; "none" returns them unchanged."""
    compression_id(name)
    if name == "none":
        return bytes(data)
    if name == "snappy":
        return _compress_xerial(memoryview(data))
    if name == "lz4":
        return _compress_lz4(memoryview(data))
    if name == "gzip":
        return zlib.compress(data, _GZIP_LEVEL, _GZIP)
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
    """Decompresses the records of a batch.

    Raises CorruptMessageError for data that the codec refuses, or that grows beyond `max_bytes`, or
    beyond both 64 MiB and a thousandfold.
    """
    compression_id(name)
    if name == "none":
        return data
    limit = min(max_bytes, max(ANY_GROWTH_BYTES, MAX_GROWTH * len(data)))
    if name == "gzip":
        return _decompress_gzip(data, limit)
    if name == "snappy":
        return _decompress_snappy(memoryview(data), limit)
    if name == "zstd" and (plain := _decompress_sized_zstd(memoryview(data), limit)) is not None:
        return plain
    return _decompress_stream(name, data, limit)


def _grew_beyond(max_bytes: int) -> CorruptMessageError:
    return CorruptMessageError(f"a batch grows beyond {max_bytes} bytes when decompressed")


def _decompress_gzip(data: BytesLike, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    rest: BytesLike = data
    while rest or not parts:
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(rest, max_bytes - total + 1)
        except zlib.error as error:
            raise CorruptMessageError(f"gzip can not decompress the batch: {error}") from error
        total += len(part)
        if total > max_bytes:
            raise _grew_beyond(max_bytes)
        if not member.eof:
            raise CorruptMessageError("gzip can not decompress the batch: it is cut off")
        parts.append(part)
        rest = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_sized_zstd(view: memoryview, max_bytes: int) -> bytes | None:
    """Decompresses a single frame whose header gives the right size, as ours do; None for all
    others. Takes at most half the time of a stream.
    """
    size = _zstd_size(view)
    if size is None or size > min(max_bytes, MAX_GROWTH * len(view)):
        return None
    try:
        plain: bytes = _codec("zstd").decompress(view, decompressed_size=size, asbytes=True)
    except (OSError, ValueError):  # wrong size, or more data follows: the stream decides
        return None
    return plain


def _zstd_size(view: memoryview) -> int | None:
    """Returns the plain size in a frame's header (RFC 8878, 3.1.1.1); None if there is none."""
    if len(view) < _ZSTD_HEADER_BYTES_MAX or view[:4] != _ZSTD_MAGIC:
        return None
    flags = view[4]
    single_segment = flags >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[flags >> 6]
    at = 5 + (1 - single_segment) + (0, 1, 2, 4)[flags & 3]
    if size_bytes == 0:
        return None
    return int.from_bytes(view[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)


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
                    raise _grew_beyond(max_bytes)
                chunks.append(chunk)
    except (OSError, ValueError) as error:
        raise CorruptMessageError(f"{name} can not decompress the batch: {error}") from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decompress_snappy(view: memoryview, max_bytes: int) -> bytes:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_block(view, max_bytes)
    position = 0
    parts: list[bytes] = []
    total = 0
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # begin of a stream
            position += len(_XERIAL_HEADER)
            if position > len(view):
                raise CorruptMessageError("a snappy header is cut off")
            continue
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
    """Returns the plain size of a raw block, a varint before it."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptMessageError("a snappy block's size is malformed")
