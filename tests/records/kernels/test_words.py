"""The kernels' inner loops use addresses: no byte beside their arrays is read or written."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.strategies import INT64
from tidemark.errors import MessageTooLargeError
from tidemark.records import arrow, columns, decode_batch, encode_arrow
from tidemark.records.kafka_codec import Reader, Writer
from tidemark.records.kernels import codec as kernels

arrow.warm_up()

CANARY = 0xA5
NUMBERS = INT64 | st.sampled_from([0, -1, 63, 64, -64, -65, 8191, 8192, -(2**31), 2**31 - 1])


@given(NUMBERS)
@settings(max_examples=300, deadline=None)
def test_varints_are_those_of_the_plain_codec(value: int) -> None:
    writer = Writer()
    writer.varlong(value)
    wanted = writer.getvalue()
    out = np.full(12, CANARY, np.uint8)
    end = kernels._put_varint(out, 1, value)
    assert out[1:end].tobytes() == wanted and kernels._varint_size(value) == len(wanted)
    assert out[0] == CANARY and (out[end:] == CANARY).all()
    assert kernels._get_varlong(out, 1, end) == (value, end)
    narrow = kernels._get_varint(out, 1, end)
    assert narrow == ((value, end) if -(2**31) <= value < 2**31 else (0, -1))
    for cut in range(1, end):
        assert kernels._get_varlong(out, 1, cut)[1] == -1


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.binary(max_size=12))
@settings(max_examples=300, deadline=None)
def test_odd_varints_are_read_or_refused_as_the_plain_codec_does(bits: int, data: bytes) -> None:
    """Odd varints include those longer than they need be."""
    for tail in (data, b"\x80" * len(data) + b"\0", b"\xff" * len(data) + data[:1]):
        reader = Reader(tail)
        try:
            value = reader.varint() if bits == 32 else reader.varlong()
            wanted = value, reader.position
        except Exception:
            wanted = 0, -1
        read = kernels._get_varint if bits == 32 else kernels._get_varlong
        assert read(np.frombuffer(tail, np.uint8), 0, len(tail)) == wanted


def column_of(values: list[bytes | None]) -> columns.Column:
    return columns.binary_column(pa.array(values, pa.binary()))


def test_a_batch_is_written_where_it_fits_and_nowhere_else() -> None:
    """In any room, the bytes after it stay as they were; in the promised room every batch fits."""
    values = [b"x" * size for size in range(40)]
    keys = [b"k" * size if size % 3 else None for size in range(40)]
    times = np.arange(40, dtype=np.int64) * 10**9
    none = columns.NULL_COLUMN
    whole = np.empty(4096, np.uint8)
    size = kernels.write(column_of(keys), column_of(values), none, none, none, times, whole)
    promised = size + kernels.SLACK_BYTES + kernels.MAX_VARINT_BYTES
    for room in range(promised + 8):
        area = np.full(4096, CANARY, np.uint8)
        out = area[:room]
        end = kernels.write(column_of(keys), column_of(values), none, none, none, times, out)
        assert end in (size, kernels.WRITE_FULL)
        assert (area[room:] == CANARY).all()
        if room >= promised:
            assert end == size and out[:end].tobytes() == whole[:end].tobytes()


GUARDED = """
import ctypes, mmap
import numpy as np
from tidemark.records import columns
from tidemark.records.kernels import codec as kernels

page = mmap.PAGESIZE
area = mmap.mmap(-1, 2 * page)
origin = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(origin + page), ctypes.c_size_t(page), 0) == 0
area[:page] = b"v" * page
none, times = columns.NULL_COLUMN, np.zeros(1, np.int64)
out = np.empty(300, np.uint8)
for size in range(100):
    data = np.frombuffer(memoryview(area)[page - size : page], np.uint8)
    column = np.array([0, size], np.int32), data, data[:0], kernels.NO_NULLS
    kernels.write(none, column, none, none, none, times, out)
    fields = np.array([[0, size, 0, size, 0, 0]], np.int32)
    offsets, filled = np.empty(2, np.int32), np.empty(size + kernels.SLACK_BYTES, np.uint8)
    kernels.fill_column(data, fields, 1, kernels.VALUE_AT, offsets, filled, data[:0])
    assert bytes(filled[:size]) == b"v" * size
print("whole")
"""


def test_nothing_is_read_behind_the_data_of_a_column() -> None:
    """The page after the bytes can not be read: an access to it ends the process."""
    done = subprocess.run(
        [sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stderr


def test_times_too_far_apart_for_a_varlong_are_refused() -> None:
    far = pa.array([-(2**62) - 1, 2**62])
    with pytest.raises(ValueError, match="2\\^63 ms"):
        encode_arrow(None, None, far)
    near = pa.array([-(2**62), 2**62 - 1])
    assert [
        r.timestamp_ms for r in decode_batch(encode_arrow(None, None, near))
    ] == near.to_pylist()


def test_a_batch_beyond_its_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.array([b"v" * 50] * 20)
    times = pa.array([0] * 20)
    size = len(encode_arrow(None, values, times))
    for limit in range(size - 8, size + 8):
        monkeypatch.setattr(arrow, "_MAX_BODY_BYTES", limit - arrow.HEADER_BYTES)
        if limit >= size:
            assert len(encode_arrow(None, values, times)) == size
        else:
            with pytest.raises(MessageTooLargeError):
                encode_arrow(None, values, times)
