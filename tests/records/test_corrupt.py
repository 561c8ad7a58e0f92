"""Bad bytes either give the right records or raise CorruptMessageError; never anything else."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.strategies import CODECS, RECORDS
from tidemark.errors import CorruptMessageError, InvalidRecordError, MessageTooLargeError
from tidemark.records import (
    BatchHeader,
    Record,
    arrow,
    decode_arrow,
    decode_batch,
    encode_batch,
    iter_batches,
    read_header,
    validate_batches,
    verify_crc,
)
from tidemark.records.compression import compress, decompress
from tidemark.records.header import HEADER_BYTES, compute_crc
from tidemark.records.kernels import codec as kernels

arrow.warm_up()

SAMPLE = [
    Record(0, 1000, b"key", b"value" * 10, (("trace", b"1"), ("none", None))),
    Record(1, 900, None, b"", ()),
    Record(2, 1300, b"", None, (("e", b""),)),
]


def resigned(buffer: bytes, **changes: int) -> bytes:
    """Returns the batch with other header fields and a CRC that agrees."""
    out = bytearray(buffer)
    header = read_header(buffer)._replace(**changes)
    out[:HEADER_BYTES] = header.packed
    out[:HEADER_BYTES] = header._replace(crc=compute_crc(out, 0, len(out))).packed
    return bytes(out)


def same_verdict(buffer: bytes) -> Any:
    """Asserts that both decoders return the same records, or both refuse."""
    try:
        plain: Any = [
            (r.offset, r.timestamp_ms, r.key, r.value, list(r.headers))
            for r in decode_batch(buffer)
        ]
    except CorruptMessageError:
        plain = None
    try:
        batch = decode_arrow(buffer)
        batch.validate(full=True)
        columns = [
            (r["offset"], r["timestamp"], r["key"], r["value"],
             [(h["key"], h["value"]) for h in r["headers"]])
            for r in batch.to_pylist()
        ]  # fmt: skip
    except CorruptMessageError:
        columns = None
    assert columns == plain
    return plain


@given(RECORDS, CODECS, st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_byte_is_noticed_by_the_crc(
    records: list[Record], codec: str, data: st.DataObject
) -> None:
    encoded = bytearray(encode_batch(records, compression=codec))
    position = data.draw(st.integers(17, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptMessageError):
        validate_batches(bytes(encoded), 1 << 20)
    with pytest.raises(CorruptMessageError):
        decode_batch(bytes(encoded))


@given(RECORDS, CODECS, st.data())
@settings(max_examples=400, deadline=None)
def test_a_well_signed_batch_of_bad_records_is_read_or_refused(
    records: list[Record], codec: str, data: st.DataObject
) -> None:
    encoded = bytearray(encode_batch(records, compression=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_BYTES, len(encoded) - 1))
        encoded[position] = data.draw(st.integers(0, 255))
    same_verdict(resigned(bytes(encoded)))


@given(RECORDS, st.data())
@settings(max_examples=200, deadline=None)
def test_a_well_signed_bad_header_is_read_or_refused(
    records: list[Record], data: st.DataObject
) -> None:
    encoded = encode_batch(records)
    changes = {
        "record_count": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 40),
        "last_offset_delta": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 40),
        "base_timestamp_ms": st.integers(-(2**63), 2**63 - 1),
        "attributes": st.integers(0, 15),
    }
    name = data.draw(st.sampled_from(sorted(changes)))
    same_verdict(resigned(encoded, **{name: data.draw(changes[name])}))


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_after_a_header_never_crash(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        body = rng.randbytes(rng.randrange(0, 60))
        count = rng.randrange(0, 4)
        header = BatchHeader(
            0, 49 + len(body), 0, 2, 0, 0, max(count - 1, 0), 0, 0, -1, -1, -1, count
        )
        same_verdict(resigned(header.packed + body))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_truncation_is_refused(codec: str) -> None:
    encoded = encode_batch(SAMPLE, compression=codec)
    for size in range(len(encoded)):
        with pytest.raises(CorruptMessageError):
            decode_batch(encoded[:size])
        if size:
            with pytest.raises(CorruptMessageError):
                validate_batches(encoded[:size], 1 << 20)
        assert decode_arrow(encoded[:size]).num_rows == 0
        body = encoded[HEADER_BYTES:size]
        if size > HEADER_BYTES:
            cut = read_header(encoded)._replace(batch_length=49 + len(body)).packed + body
            assert same_verdict(resigned(cut)) is None


def test_nothing_is_read_beyond_a_batch() -> None:
    """`scan` gets a buffer whose next bytes would complete a cut record, and must not read them."""
    encoded = encode_batch([Record(0, 1, None, b"x" * 50)])
    data = np.frombuffer(encoded, np.uint8)
    for end in range(HEADER_BYTES, len(encoded)):
        table = np.array([[HEADER_BYTES, end, 0, 0, 1, 1, 0, 1]], np.int64)
        result = kernels.scan(
            data, table, 0, 10, np.empty(2, np.int64), np.empty(2, np.int64),
            np.empty((2, kernels.FIELDS), np.int32), np.zeros(kernels.TOTALS, np.int64),
        )  # fmt: skip
        assert result in kernels.FAULTS


GUARDED = """
import ctypes, mmap, random
import numpy as np
from tidemark.records import Record, encode_batch
from tidemark.records.kernels import codec as kernels

page = mmap.PAGESIZE
area = mmap.mmap(-1, 2 * page)
origin = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(origin + page), ctypes.c_size_t(page), 0) == 0
rng = random.Random(7)
headers = (("h", b"x"), ("n", None))
body = encode_batch([Record(i, 10**i, b"key", b"v" * i * 20, headers) for i in range(5)])[61:]
whole = 0
for turn in range(4000):
    bad = bytearray(body[: rng.randrange(len(body) + 1)])
    for _ in range(turn % 3):
        if bad:
            bad[rng.randrange(len(bad))] = rng.randrange(256)
    area[page - len(bad) : page] = bytes(bad)
    data = np.frombuffer(memoryview(area)[page - len(bad) : page], np.uint8)
    table = np.array([[0, len(bad), 0, 4, 1, 1, 0, 5]], np.int64)
    fields, totals = np.empty((6, kernels.FIELDS), np.int32), np.zeros(kernels.TOTALS, np.int64)
    whole += kernels.scan(
        data, table, 0, 10, np.empty(6, np.int64), np.empty(6, np.int64), fields, totals
    ) == 5
print(whole > 0)
"""


def test_not_a_byte_is_read_beyond_the_buffer() -> None:
    """The page after the bytes can not be read: an access to it ends the process."""
    done = subprocess.run(
        [sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_an_offset_outside_its_batch_is_refused() -> None:
    gaps = encode_batch([Record(0, 1, b"", b""), Record(5, 1, b"", b"")], keep_offsets=True)
    assert same_verdict(gaps) is not None
    assert same_verdict(resigned(gaps, last_offset_delta=4)) is None


def test_absurd_record_counts_are_refused_before_anything_is_allocated() -> None:
    for codec in ("none", "zstd"):
        claims = resigned(
            encode_batch(SAMPLE, compression=codec),
            record_count=2**31 - 1,
            last_offset_delta=2**31 - 2,
        )
        assert same_verdict(claims) is None


def test_absurd_sizes_are_refused() -> None:
    encoded = encode_batch(SAMPLE)
    for length in (-1, 0, 48, -(2**31)):
        bad = encoded[:8] + struct.pack(">i", length) + encoded[12:]
        with pytest.raises(CorruptMessageError, match="claims a length"):
            list(iter_batches(bad))
    torn = encoded[:8] + struct.pack(">i", 2**31 - 1) + encoded[12:]
    assert list(iter_batches(torn)) == []
    with pytest.raises(MessageTooLargeError):
        validate_batches(torn, 1 << 20)


def test_another_magic_is_refused() -> None:
    encoded = bytearray(encode_batch(SAMPLE))
    encoded[16] = 1
    with pytest.raises(CorruptMessageError, match="magic 1; only 2"):
        read_header(encoded)


def test_an_oversized_batch_is_refused() -> None:
    encoded = encode_batch(SAMPLE)
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes is 100"):
        validate_batches(encoded, 100)
    assert len(validate_batches(encoded, len(encoded))) == 1


def test_a_torn_tail_is_an_error_to_validation() -> None:
    encoded = encode_batch(SAMPLE)
    with pytest.raises(CorruptMessageError, match="5 bytes at the end"):
        validate_batches(encoded + encoded[:5], 1 << 20)


def test_an_unknown_codec_number_is_refused() -> None:
    bad = resigned(encode_batch(SAMPLE), attributes=5)
    with pytest.raises(CorruptMessageError, match="unknown compression 5"):
        validate_batches(bad, 1 << 20)
    assert same_verdict(bad) is None


def test_a_negative_base_offset_is_refused() -> None:
    assert same_verdict(resigned(encode_batch(SAMPLE), base_offset=-1)) is None


def test_what_a_client_may_not_write_is_refused() -> None:
    gaps = encode_batch(SAMPLE, last_offset=9)
    control = encode_batch(SAMPLE, control=True)
    empty = encode_batch([], last_offset=0)
    horizon = encode_batch(SAMPLE, delete_horizon_ms=5)
    for bad in (gaps, control, empty, horizon):
        assert len(validate_batches(bad, 1 << 20)) == 1
        with pytest.raises(InvalidRecordError):
            validate_batches(bad, 1 << 20, from_client=True)
    validate_batches(encode_batch(SAMPLE), 1 << 20, from_client=True)


def test_a_truncated_header_names_what_is_there() -> None:
    with pytest.raises(CorruptMessageError, match="position 0 of 60 bytes"):
        read_header(bytes(60))
    with pytest.raises(CorruptMessageError, match="are there"):
        verify_crc(encode_batch(SAMPLE)[:-1], 0, read_header(encode_batch(SAMPLE)))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_decompression_bomb_is_stopped(codec: str) -> None:
    bomb = compress(codec, bytes(8 << 20))
    assert len(bomb) < 1 << 20
    with pytest.raises(CorruptMessageError):
        decompress(codec, bomb, max_bytes=1 << 20)
    assert decompress(codec, bomb, max_bytes=8 << 20) == bytes(8 << 20)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@given(garbage=st.binary(max_size=100))
@settings(max_examples=60, deadline=None)
def test_garbage_is_refused_by_every_codec(codec: str, garbage: bytes) -> None:
    try:
        decompress(codec, garbage, max_bytes=1 << 20)
    except CorruptMessageError:
        return
    assert len(garbage) < 100


def test_a_snappy_block_that_claims_too_much_is_refused() -> None:
    with pytest.raises(CorruptMessageError, match="claims"):
        decompress("snappy", b"\xff\xff\xff\x7f" + bytes(8))


def test_raw_snappy_is_read_as_well() -> None:
    raw = pa.Codec("snappy").compress(b"tide" * 100, asbytes=True)
    assert decompress("snappy", raw) == b"tide" * 100
