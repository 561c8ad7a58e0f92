"""lz4 frames as the Java clients write and read them: independent blocks of 64 KiB."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.records import Record, encode_batch, iter_batches
from tidemark.records.compression import compress, decompress
from tidemark.records.header import HEADER_BYTES

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.0" / "codec-lz4-0"
JAVA_HEADER = bytes.fromhex("04224d18604082")
BLOCK = 64 * 1024


def blocks_of(frame: bytes) -> list[bytes]:
    """Returns the plain bytes of each block, decompressed without the blocks before it."""
    assert frame.startswith(JAVA_HEADER)
    position, found = len(JAVA_HEADER), []
    while True:
        (size,) = struct.unpack_from("<I", frame, position)
        position += 4
        if size == 0:
            break
        stored, size = bool(size >> 31), size & 0x7FFFFFFF
        data = frame[position : position + size]
        position += size
        found.append(data if stored else _alone(data))
    assert position == len(frame), "something follows the end mark"
    return found


def _alone(block: bytes) -> bytes:
    """Decompresses a raw block; it does not contain its plain size, which is at most 64 KiB."""
    plain, at = bytearray(), 0
    while at < len(block):
        token = block[at]
        at += 1
        literals, at = _length(block, at, token >> 4)
        plain += block[at : at + literals]
        at += literals
        if at == len(block):
            break
        distance = int.from_bytes(block[at : at + 2], "little")
        matched, at = _length(block, at + 2, token & 15)
        assert 0 < distance <= len(plain), "the block refers to one before it"
        for _ in range(matched + 4):
            plain.append(plain[-distance])
    return bytes(plain)


def _length(block: bytes, at: int, nibble: int) -> tuple[int, int]:
    while nibble >= 15:
        nibble += block[at]
        at += 1
        if block[at - 1] != 255:
            break
    return nibble, at


@pytest.mark.parametrize("size", [0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("kind", ["random", "repeating"])
def test_every_block_is_independent_of_the_others(size: int, kind: str) -> None:
    plain = random.Random(size).randbytes(size) if kind == "random" else b"tide " * (size // 5 + 1)
    plain = plain[:size]
    frame = compress("lz4", plain)
    blocks = blocks_of(frame)
    assert b"".join(blocks) == plain
    assert all(len(block) == BLOCK for block in blocks[:-1])
    assert bytes(decompress("lz4", frame)) == plain


def test_the_batches_of_the_java_client_are_compressed_to_the_same_bytes() -> None:
    data = (GOLDEN / f"{0:020d}.log").read_bytes()
    for position, header in iter_batches(data):
        frame = data[position + HEADER_BYTES : position + header.size_bytes]
        assert compress("lz4", decompress("lz4", frame)) == frame


def test_a_large_batch_has_the_java_clients_frame() -> None:
    records = [Record(0, 1, b"k", b"same bytes again " * 500) for _ in range(60)]
    batch = encode_batch(records, compression="lz4")
    assert len(blocks_of(batch[HEADER_BYTES:])) > 1


def test_frames_of_linked_blocks_are_read_too() -> None:
    plain = b"what other clients write " * 20_000
    frame = pa.Codec("lz4").compress(plain, asbytes=True)
    assert not frame.startswith(JAVA_HEADER)
    assert bytes(decompress("lz4", frame)) == plain
