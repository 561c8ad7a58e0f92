"""The fast path of an append (one kernel call) accepts only what the full path accepts, and stores
the same bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from commitlog.log import validation
from commitlog.types import AppendInfo
from tests.commitlog.builders import NOW, batch, config, open_log
from tidemark.errors import InvalidRecordError, TidemarkError
from tidemark.records import Record, arrow, encode_batch, read_header
from tidemark.records.kernels import append as append_kernel

arrow.warm_up()

OPTIONS: dict[str, Any] = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 0}
BATCHES = [
    batch(1),
    batch(7, size=3, **OPTIONS),
    batch(5, step=-3),
    batch(4, compression="zstd", **OPTIONS),
    batch(3, timestamp=-5),
]
SETTINGS = [
    config(),
    config(message_timestamp_before_max_ms=4, message_timestamp_after_max_ms=2),
    config(cleanup_policy=("compact",)),
    config(compression_type="lz4"),
    config(message_timestamp_type="LogAppendTime"),
    config(max_message_bytes=150),
]
FIELDS = {0: ">q", 8: ">i", 16: ">b", 21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 57: ">i"}


def outcome(data: bytes, settings: Any) -> tuple[str, AppendInfo | None, bytes]:
    """Returns the result of appending these bytes, and the log's content afterwards."""
    log = open_log(settings=settings)
    try:
        info = log.append_as_leader(data, 3, NOW)
    except TidemarkError as error:
        return type(error).__name__ + str(error), None, b""
    return "", info, bytes(log.read(0, 1 << 20).records)


def both_ways(data: bytes, settings: Any) -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        short = outcome(data, settings)
        patch.setattr(validation, "append_kernel", lambda: None)
        return short, outcome(data, settings)


def with_sum(data: bytearray) -> bytes:
    if len(data) > 21:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@given(
    st.sampled_from(BATCHES),
    st.sampled_from(SETTINGS),
    st.sampled_from(sorted(FIELDS)),
    st.sampled_from([-(1 << 15), -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 0x10, 0x20, 0x40, 125, 1 << 14]),
    st.booleans(),
)
@example(BATCHES[1], SETTINGS[0], 23, 1 << 14, True)
@example(BATCHES[1], SETTINGS[0], 35, 1 << 14, True)
def test_headers_of_any_kind_have_the_same_outcome_on_both_ways(
    data: bytes, settings: Any, position: int, value: int, fits: bool
) -> None:
    changed = bytearray(data)
    layout = FIELDS[position]
    struct.pack_into(
        layout, changed, position, max(-128, min(127, value)) if layout == ">b" else value
    )
    short, long = both_ways(with_sum(changed) if fits else bytes(changed), settings)
    assert short == long


@given(st.sampled_from(BATCHES), st.data())
def test_cut_and_flipped_bytes_have_the_same_outcome_on_both_ways(
    data: bytes, draw: st.DataObject
) -> None:
    changed = bytearray(data + draw.draw(st.sampled_from(BATCHES)))
    changed[draw.draw(st.integers(0, len(changed) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    del changed[draw.draw(st.integers(0, len(changed))) :]
    whole = bytes(changed) if draw.draw(st.booleans()) else with_sum(changed)
    short, long = both_ways(whole, SETTINGS[0])
    assert short == long


@pytest.mark.parametrize("settings", SETTINGS[:1])
@pytest.mark.parametrize("data", BATCHES[:4])
def test_what_is_as_it_mostly_is_goes_the_short_way(
    data: bytes, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the long way")

    monkeypatch.setattr(validation, "_check_one", refuse)
    log = open_log(settings=settings)
    info = log.append_as_leader([memoryview(data + batch(2))[: len(data)], batch(1)], 3, NOW)
    assert info.batches == 2
    found = bytes(log.read(0, 1 << 20).records)
    assert found[16 : len(data)] == data[16:]
    assert found[:16] == struct.pack(">qii", 0, len(data) - 12, 3)
    assert read_header(found, len(data)).base_offset == info.last_offset


def test_a_batch_with_a_key_that_a_compacted_topic_misses_is_refused() -> None:
    keyless = encode_batch([Record(0, NOW, b"k", b"v"), Record(1, NOW, None, b"v")])
    with pytest.raises(InvalidRecordError):
        open_log(settings=SETTINGS[2]).append_as_leader(keyless, 3, NOW)


@pytest.mark.parametrize("at", [-1, 1, 1 << 40, -(1 << 40)])
def test_a_place_outside_of_the_bytes_is_no_batch(at: int) -> None:
    assert append_kernel.check(append_kernel.bytes_of(batch(1)), at)[0] == -1
