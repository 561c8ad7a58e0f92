"""A compressed batch whose header has a wrong maximum timestamp. It stays compressed on append, so
the header is trusted. The tests show the effects on a search by time.
"""

from __future__ import annotations

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tests.commitlog.builders import NOW, TP, config
from tidemark.records import Record, encode_batch


def log_with(claims: list[int], times: list[int]) -> Log:
    """A log of several segments with a compressed batch of one record per (claimed maximum, true
    time).
    """
    log = open_log(MemoryDirectory(), TP, config(segment_bytes=400), now_ms=NOW)
    for claim, time in zip(claims, times, strict=True):
        records = [Record(0, NOW + time, b"k", b"v" * 40)]
        batch = encode_batch(records, compression="zstd", max_timestamp_ms=NOW + claim)
        log.append_as_leader(batch, 1, NOW + 100_000)
    return log


def first_at(log: Log, time: int) -> int | None:
    found = log.offset_for_timestamp(NOW + time)
    return None if found is None else found.offset


@pytest.mark.parametrize("wrong", range(12))
def test_a_maximum_that_is_too_great_hides_no_other_record(wrong: int) -> None:
    """KIP-33's guarantee holds: no record at or after the time lies before the offset found."""
    times = [100 * n for n in range(12)]
    claims = [time + (450 if n == wrong else 0) for n, time in enumerate(times)]
    log = log_with(claims, times)
    for time in range(0, 1200, 50):
        expected = next((offset for offset, t in enumerate(times) if t >= time), None)
        assert first_at(log, time) == expected, time


@pytest.mark.parametrize("wrong", range(12))
def test_a_maximum_that_is_too_small_can_hide_only_its_own_batch(wrong: int) -> None:
    times = [100 * n for n in range(12)]
    claims = [time - (350 if n == wrong else 0) for n, time in enumerate(times)]
    log = log_with(claims, times)
    for time in range(0, 1200, 50):
        others = (o for o, t in enumerate(times) if t >= time and o != wrong)
        found = first_at(log, time)
        assert found in (next(others, None), wrong), time
        assert found is None or times[found] >= time
