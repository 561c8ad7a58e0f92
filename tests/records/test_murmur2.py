"""The partitioner: Kafka's known hashes, and the vectorised one equals the single one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as independent_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.records import murmur2, partition_for_key, partitions_for_keys

# Values of Kafka's own UtilsTest, as signed 32-bit integers.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KNOWN.items())
def test_known_hashes(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_agrees_with_an_independent_one(key: bytes) -> None:
    assert murmur2(key) == independent_murmur2(key) & 0xFFFFFFFF


@given(st.lists(st.none() | st.binary(max_size=40), max_size=30), st.integers(1, 100))
@settings(deadline=None)
def test_vectorised_is_the_same(keys: list[bytes | None], count: int) -> None:
    found = partitions_for_keys(pa.array(keys, pa.binary()), count, -1)
    expected = [-1 if key is None else partition_for_key(key, count) for key in keys]
    assert found.tolist() == expected


def test_slices_and_strings_are_read_as_such() -> None:
    keys = pa.array(["x", "21", None, "foobar"])[1:]
    expected = [partition_for_key(b"21", 7), 3, partition_for_key(b"foobar", 7)]
    assert partitions_for_keys(keys, 7, 3).tolist() == expected


def test_no_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        partitions_for_keys(pa.array([b"x"]), 0)
