"""The walk over a batch's records agrees with the decoder, on facts and on refusals."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.strategies import RECORDS
from tidemark.errors import CorruptMessageError, InvalidRecordError, TidemarkError
from tidemark.records import Record, arrow, decode_batch, encode_batch, facts, read_header
from tidemark.records.facts import (
    RecordFacts,
    find_in_plain_batch,
    first_record_at_or_after,
    record_facts,
)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def facts_of(records: list[Record]) -> RecordFacts:
    times = [record.timestamp_ms for record in records]
    least = min((time for time in times if time != -1), default=-1)
    return RecordFacts(least, max(times), any(record.key is None for record in records))


@pytest.fixture(autouse=True, params=["plain", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths: the decoder's loop, and the kernel."""
    monkeypatch.setattr(arrow, "takes_plain_path", lambda _: request.param == "plain")
    monkeypatch.setattr(facts, "_walk_kernel", None)
    monkeypatch.setattr(facts, "_find_kernel", None)


@pytest.mark.parametrize("codec", CODECS)
def test_facts_are_those_of_the_decoded_records(codec: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(RECORDS, st.integers(0, 1 << 40))
    def check(records: list[Record], base: int) -> None:
        data = b"xyz" + encode_batch(records, base_offset=base, compression=codec)
        assert record_facts(data, read_header(data, 3)) == facts_of(decode_batch(data, 3))

    check()


def test_a_record_without_a_timestamp_is_not_the_oldest_where_another_has_one() -> None:
    for times in ([-1, 5, 9], [-1, -1], [7, -1], [-1, -5]):
        records = [Record(0, time, b"k", b"v") for time in times]
        data = encode_batch(records)
        assert record_facts(data, read_header(data)) == facts_of(records)


def test_any_flipped_bit_gives_the_decoders_verdict() -> None:
    rng = random.Random(5)
    records = [
        Record(0, 1000 + i * 3 % 7, b"k" * (i % 3) or None, b"v" * i, (("h", b"x"),) * (i % 2))
        for i in range(12)
    ]
    data = encode_batch(records)
    for _ in range(3000):
        damaged = bytearray(data)
        position = rng.randrange(61, len(data))
        damaged[position] ^= 1 << rng.randrange(8)
        damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
        try:
            decoded = decode_batch(bytes(damaged))
        except TidemarkError:
            decoded = []
        if [record.offset for record in decoded] == list(range(len(records))):
            assert record_facts(bytes(damaged), read_header(damaged)) == facts_of(decoded)
        else:
            with pytest.raises((CorruptMessageError, InvalidRecordError)):
                record_facts(bytes(damaged), read_header(damaged))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_short_way_to_a_record_finds_what_the_long_one_finds_or_nothing(codec: str) -> None:
    rng = random.Random(6)
    records = [Record(0, 1000 + i * 3 % 7, b"k", b"v" * i) for i in range(12)]
    data = encode_batch(records, base_offset=20, compression=codec)
    record_facts(data, read_header(data))  # loads the kernels, if they are to be used
    found = 0
    for step in range(4000):
        damaged = bytearray(data)
        if step % 4:
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if step % 4 > 1:
            damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
        bounds = rng.randint(998, 1008), rng.randint(18, 34)
        part = memoryview(damaged)[: rng.choice((len(data), len(data), rng.randrange(len(data))))]
        short = find_in_plain_batch(part, *bounds)
        found += short is not None
        if short is not None:
            header = read_header(damaged)
            assert short == first_record_at_or_after(damaged, 0, header, *bounds)
            assert header.max_timestamp_ms >= bounds[0]
    assert (found > 1000) == (codec == "none" and find_kernel_is_used())


def find_kernel_is_used() -> bool:
    """Returns whether the kernel is used; not if all batches are to be decoded plainly."""
    return not arrow.takes_plain_path(1)


def test_a_header_s_key_that_is_no_text_is_taken_and_read_as_java_reads_it() -> None:
    """Every reader can read a batch that an append accepts; otherwise it would stop its
    consumers.
    """
    records = [Record(0, 7, b"k", b"v", (("h1", b"x"), ("gr\u00fcn", None)))]
    odd = bytearray(encode_batch(records))
    odd[odd.index(b"h1")] = 0xFF
    odd[17:21] = crc32c(bytes(odd[21:])).to_bytes(4, "big")
    wanted = (("\ufffd1", b"x"), ("gr\u00fcn", None))
    assert record_facts(bytes(odd), read_header(odd)) == facts_of(records)
    assert decode_batch(bytes(odd))[0].headers == wanted
    (found,) = arrow.decode_arrow(bytes(odd)).column("headers").to_pylist()
    assert tuple((header["key"], header["value"]) for header in found) == wanted


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="without records"):
        empty = encode_batch([], last_offset=3, max_timestamp_ms=1)
        record_facts(empty, read_header(empty))
