"""Compressed bodies that no writer of ours makes. We read those that Kafka's Java clients read;
those damaged, cut off, too large or no frame at all are refused.
"""

from __future__ import annotations

import gzip
import itertools
import random
import struct
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.records.test_corrupt import resigned
from tidemark.errors import CorruptMessageError
from tidemark.records import Record, arrow, compression, decode_arrow, decode_batch, encode_batch
from tidemark.records.compression import compress, decompress

arrow.warm_up()

TEXT = b"time and tide wait for none, " * 50
ALL = ("gzip", "snappy", "lz4", "zstd")
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"
ZSTD = b"\x28\xb5\x2f\xfd"
KIB = 1024


def raw_snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data, asbytes=True))


def xerial(*blocks: bytes, version: int = 1) -> bytes:
    head = b"\x82SNAPPY\0" + struct.pack(">ii", version, 1)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def zstd_run(size: int, last: bool = True) -> bytes:
    """Returns a block of one byte `size` times."""
    return struct.pack("<I", size << 3 | 2 | last)[:3] + b"a"


def zstd_frame(blocks: bytes, window_log: int = 17) -> bytes:
    """Returns a frame without its plain size."""
    return ZSTD + bytes([0, (window_log - 10) << 3]) + blocks


def streamed_zstd(data: bytes) -> bytes:
    """Compresses as Java's stream does: the frame's header has no plain size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


READ = {
    "gzip of two members": ("gzip", gzip.compress(TEXT[:600]) + gzip.compress(TEXT[600:])),
    "gzip with a name": (
        "gzip",
        b"\x1f\x8b\x08\x08" + bytes(6) + b"n\0" + gzip.compress(TEXT)[10:],
    ),
    "snappy streams, one after the other": (
        "snappy",
        compress("snappy", TEXT[:600]) + compress("snappy", TEXT[600:]),
    ),
    "snappy in blocks of seven bytes": (
        "snappy",
        xerial(*(raw_snappy(TEXT[at : at + 7]) for at in range(0, len(TEXT), 7))),
    ),
    "snappy of another version": ("snappy", xerial(raw_snappy(TEXT), version=2)),
    "snappy with an empty block": ("snappy", xerial(raw_snappy(b""), raw_snappy(TEXT))),
    "snappy raw": ("snappy", raw_snappy(TEXT)),
    "lz4 frames": ("lz4", compress("lz4", TEXT[:600]) + compress("lz4", TEXT[600:])),
    "lz4 before a skippable frame": ("lz4", compress("lz4", TEXT) + SKIPPABLE),
    "zstd frames": ("zstd", compress("zstd", TEXT[:600]) + streamed_zstd(TEXT[600:])),
    "zstd between skippable frames": ("zstd", SKIPPABLE + compress("zstd", TEXT) + SKIPPABLE),
    "zstd that does not say its size": ("zstd", streamed_zstd(TEXT)),
}

REFUSED = {
    "gzip with another CRC": ("gzip", gzip.compress(TEXT)[:-8] + b"1234" + struct.pack("<I", 1450)),
    "gzip with another size": ("gzip", gzip.compress(TEXT)[:-4] + b"\1\0\0\0"),
    "gzip and something else": ("gzip", gzip.compress(TEXT) + b"something"),
    "gzip and half a member": ("gzip", (gzip.compress(TEXT) * 2)[:-5]),
    "zlib in place of gzip": ("gzip", zlib.compress(TEXT)),
    "nothing for gzip": ("gzip", b""),
    "nothing for snappy": ("snappy", b""),
    "half a snappy header": ("snappy", XERIAL[:12]),
    "half a snappy header behind a stream": ("snappy", compress("snappy", TEXT) + XERIAL[:12]),
    "half a snappy length": ("snappy", compress("snappy", TEXT) + b"\0\0"),
    "a snappy block of no bytes": ("snappy", XERIAL + bytes(4)),
    "a snappy block of negative bytes": ("snappy", XERIAL + b"\xff\xff\xff\xff"),
    "a snappy block longer than the rest": ("snappy", XERIAL + b"\x7f\xff\xff\xff" + b"x"),
    "snappy that claims more": ("snappy", b"\xff\x0f" + raw_snappy(TEXT)[2:]),
    "snappy that claims less": ("snappy", b"\x01" + raw_snappy(TEXT)[2:]),
    "snappy and something else": ("snappy", raw_snappy(TEXT) + b"x"),
    "lz4 without its end": ("lz4", compress("lz4", TEXT)[:-4]),
    "lz4 and something else": ("lz4", compress("lz4", TEXT) + b"something"),
    "lz4's block beyond its most": ("lz4", compress("lz4", b"")[:7] + b"\xff\xff\xff\x7f" + TEXT),
    "zstd that says too little": ("zstd", ZSTD + bytes([0x20, 5]) + zstd_run(10)),
    "zstd that says too much": ("zstd", ZSTD + bytes([0x20, 15]) + zstd_run(10)),
    "zstd that says 2^63": ("zstd", ZSTD + b"\xe0" + struct.pack("<Q", 1 << 63) + zstd_run(10)),
    "zstd of a dictionary": ("zstd", ZSTD + bytes([1, 0x38, 5]) + zstd_run(10)),
    "zstd with a window of 2 GiB": ("zstd", zstd_frame(zstd_run(10), 31)),
    "zstd with a block beyond its window": ("zstd", zstd_frame(zstd_run(5 * KIB), 10)),
    "zstd without its last block": ("zstd", zstd_frame(zstd_run(10, last=False))),
    "zstd and something else": ("zstd", compress("zstd", TEXT) + b"something"),
    "half a skippable frame": ("zstd", compress("zstd", TEXT) + SKIPPABLE[:-1]),
}


@pytest.mark.parametrize("name", READ)
def test_what_others_write_is_read(name: str) -> None:
    codec, frame = READ[name]
    assert bytes(decompress(codec, frame)) == TEXT


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_whole_frame_is_refused(name: str) -> None:
    with pytest.raises(CorruptMessageError):
        decompress(*REFUSED[name])


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yields small frames that grow beyond 64 MiB, and beyond a thousand times their size."""
    yield "zstd", zstd_frame(zstd_run(128 * KIB, last=False) * 520 + zstd_run(1))
    yield "zstd", zstd_frame(zstd_run(128 * KIB, last=False) * 300 + zstd_run(1)) * 2
    size = struct.pack("<I", 70 << 20)
    yield "zstd", ZSTD + b"\xa0" + size + zstd_run(128 * KIB, last=False) * 560 + zstd_run(0)
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield "gzip", packed.compress(bytes(66 << 20)) + packed.flush()


@pytest.mark.parametrize("turn", range(4))
def test_what_grows_a_thousandfold_beyond_64_mib_is_refused(turn: int) -> None:
    codec, bomb = next(itertools.islice(bombs(), turn, None))
    assert len(bomb) < 70 * KIB
    with pytest.raises(CorruptMessageError, match="grows beyond"):
        decompress(codec, bomb)


@pytest.mark.parametrize("codec", ALL)
def test_what_is_small_may_grow_as_it_likes(codec: str) -> None:
    plain = bytes(4 << 20)
    assert bytes(decompress(codec, compress(codec, plain))) == plain


@pytest.mark.parametrize("codec", ALL)
def test_the_limit_is_exact(codec: str) -> None:
    frame = compress(codec, TEXT)
    assert bytes(decompress(codec, frame, len(TEXT))) == TEXT
    with pytest.raises(CorruptMessageError):
        decompress(codec, frame, len(TEXT) - 1)


@pytest.mark.parametrize("codec", ALL)
def test_sizes_around_the_edges_of_blocks_come_back(codec: str) -> None:
    source = random.Random(3).randbytes(65 * KIB) + bytes(64 * KIB)
    for edge in (0, 32 * KIB, 64 * KIB, 128 * KIB):
        for size in range(max(0, edge - 1), edge + 2):
            for data in (source[:size], source[::-1][:size]):
                assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_without_records_is_read_whatever_its_codec(codec: int) -> None:
    empty = resigned(encode_batch([], last_offset=3), attributes=codec)
    assert decode_batch(empty) == []
    assert decode_arrow(empty).num_rows == 0


@pytest.mark.parametrize("plain", [True, False])
def test_a_checksum_is_not_looked_at_where_the_caller_did(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow._PlainBudget, "take", lambda *_: plain)
    odd = bytearray(encode_batch([Record(0, 1, b"k", b"v")]))
    odd[17] ^= 1
    assert decode_arrow(bytes(odd), check_crcs=False).num_rows == 1
    with pytest.raises(CorruptMessageError):
        decode_arrow(bytes(odd))


def test_times_too_far_apart_are_refused_without_kernels_too() -> None:
    far = [Record(0, -(2**62) - 1, None, None), Record(1, 2**62, None, None)]
    with pytest.raises(ValueError, match="2\\^63 ms"):
        encode_batch(far)


def test_the_size_in_a_zstd_frame_is_believed_where_it_is_true() -> None:
    for size in (0, 1, 255, 256, 257, 65_791, 65_792, 100_000):
        data = TEXT * (size // len(TEXT) + 1)
        frame = compress("zstd", data[:size])
        if len(frame) >= 18:
            assert compression._zstd_size(memoryview(frame)) == size
        assert bytes(decompress("zstd", frame)) == data[:size]
    assert compression._zstd_size(memoryview(streamed_zstd(TEXT))) is None
