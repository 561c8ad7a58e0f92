"""The checks and changes of a leader before an append: codecs, timestamps, offsets, keys."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from commitlog.log.log import Log
from tests.commitlog.builders import NOW, batch, config, open_log
from tidemark.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    TidemarkError,
    UnsupportedCompressionTypeError,
)
from tidemark.records import Record, decode_batch, encode_batch, read_header
from tidemark.records import arrow as arrow_path
from tidemark.records.compression import compress

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNTS = [pytest.param(3, id="few records"), pytest.param(200, id="many records")]


@pytest.fixture(params=["plain", "kernel"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations of walking records: Python's loop, and the kernel."""
    monkeypatch.setattr(arrow_path, "takes_plain_path", lambda _: request.param == "plain")


def stored(log: Log) -> bytes:
    return bytes(log.read(0, 1 << 20).records)


def with_field(data: bytes, layout: str, position: int, value: int) -> bytes:
    """Returns the batch with another header field, and a CRC that fits."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


# A broker of Kafka 4.3 answers INVALID_RECORD to the same batches, with two exceptions: the codec
# (UNKNOWN_SERVER_ERROR), and the offset delta, which it does not check.
REFUSED: dict[str, tuple[bytes, type[TidemarkError]]] = {
    "more records than there are": (
        with_field(with_field(batch(3), ">i", 57, 4), ">i", 23, 3),
        InvalidRecordError,
    ),
    "fewer records than there are": (
        with_field(with_field(batch(3), ">i", 57, 2), ">i", 23, 1),
        InvalidRecordError,
    ),
    "no records": (with_field(batch(3), ">i", 57, 0), InvalidRecordError),
    "a last offset of its own": (with_field(batch(3), ">i", 23, 5), InvalidRecordError),
    "offsets of its own": (with_field(batch(3), ">q", 0, 7), InvalidRecordError),
    "a record longer than the batch": (with_field(batch(3), ">b", 61, 0x7E), InvalidRecordError),
    "an offset delta out of order": (with_field(batch(3), ">b", 64, 4), InvalidRecordError),
    "the control bit": (with_field(batch(3), ">h", 21, 0x20), InvalidRecordError),
    "codec 5": (with_field(batch(3), ">h", 21, 5), UnsupportedCompressionTypeError),
    "codec 7": (with_field(batch(3), ">h", 21, 7), UnsupportedCompressionTypeError),
    "a flipped bit": (batch(3)[:-1] + b"?", CorruptMessageError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_client_may_not_send_is_refused_for_good_unless_the_wire_may_have_done_it(
    what: str,
) -> None:
    data, error = REFUSED[what]
    log = keep()
    with pytest.raises(error):
        log.append_as_leader(data, 1, NOW)
    assert log.log_end_offset == 0
    assert error.retriable == (error is CorruptMessageError)


def test_records_that_can_not_be_decompressed_for_the_topics_codec_are_invalid() -> None:
    data = batch(3, compression="gzip")
    garbage = with_field(data[:61] + bytes(len(data) - 61), ">i", 8, len(data) - 12)
    with pytest.raises(InvalidRecordError):
        keep(compression_type="zstd").append_as_leader(garbage, 1, NOW)


def test_a_record_without_a_timestamp_is_neither_too_old_nor_the_newest() -> None:
    log = keep(message_timestamp_before_max_ms=1000)
    records = [Record(0, time, b"k", b"v") for time in (-1, NOW, -1)]
    log.append_as_leader(encode_batch(records), 1, NOW)
    assert read_header(stored(log)).max_timestamp_ms == NOW
    records[2] = Record(0, NOW - 1001, b"k", b"v")
    with pytest.raises(InvalidTimestampError):
        log.append_as_leader(encode_batch(records), 1, NOW)


def test_times_before_1970_leave_a_batch_without_a_maximum() -> None:
    log = keep()
    log.append_as_leader(batch(2, timestamp=-5), 1, NOW)
    assert read_header(stored(log)).max_timestamp_ms == -1


def keep(**settings: Any) -> Log:
    return open_log(settings=config(segment_bytes=1 << 20, **settings))


@pytest.mark.parametrize("wanted", [*CODECS[1:], "uncompressed"])
@pytest.mark.parametrize("sent", CODECS)
def test_a_topics_own_codec_is_enforced_and_nothing_else_changes(sent: str, wanted: str) -> None:
    log = keep(compression_type=wanted)
    options: dict[str, Any] = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 0}
    data = batch(40, size=50, compression=sent, **options)
    info = log.append_as_leader(data, 3, NOW)
    found = stored(log)
    header = read_header(found)
    assert header.compression == ("none" if wanted == "uncompressed" else wanted)
    assert decode_batch(found) == decode_batch(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 0)
    assert info.size_bytes == log.size_bytes == len(found)
    assert log.append_as_leader(data, 3, NOW).duplicate
    before = log.log_end_offset
    log.close()
    assert open_log(log.directory, log.config).log_end_offset == before


@pytest.mark.parametrize("sent", CODECS)
def test_producer_keeps_what_was_sent_byte_for_byte(sent: str) -> None:
    log = keep(compression_type="producer")
    data = batch(40, compression=sent, partition_leader_epoch=3)
    log.append_as_leader(data, 3, NOW)
    assert stored(log) == data


def test_a_batch_that_grows_beyond_the_limit_by_the_topics_codec_is_refused() -> None:
    log = keep(compression_type="uncompressed", max_message_bytes=2000)
    data = batch(100, size=100, compression="zstd")
    assert len(data) < 2000
    with pytest.raises(MessageTooLargeError):
        log.append_as_leader(data, 1, NOW)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("claimed", [NOW - 5000, NOW + 50, NOW + 4000])
def test_a_wrong_maximum_timestamp_is_corrected(count: int, claimed: int) -> None:
    log = keep()
    log.append_as_leader(with_field(batch(count), ">q", 35, claimed), 1, NOW)
    header = read_header(stored(log))
    assert header.max_timestamp_ms == NOW + count - 1
    assert header.crc == crc32c(stored(log)[21:])
    hit = log.offset_for_timestamp(NOW + count - 1)
    assert hit is not None
    assert hit.offset == count - 1
    assert log.offset_for_timestamp(NOW + count) is None


@pytest.mark.parametrize("count", COUNTS)
def test_each_record_must_lie_within_the_timestamp_bounds(count: int) -> None:
    log = keep(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    times = [NOW] * (count - 1)
    for outlier in (NOW - 1001, NOW + 1001):
        records = [Record(0, t, b"k", b"v", ()) for t in (*times, outlier)]
        data = with_field(encode_batch(records), ">q", 35, NOW)  # the header does not show it
        with pytest.raises(InvalidTimestampError, match=r"max\.ms"):
            log.append_as_leader(data, 1, NOW)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("count", COUNTS)
def test_offsets_within_a_batch_must_go_up_by_one(count: int) -> None:
    log = keep()
    records = [Record(i, NOW, b"a key", b"v", ()) for i in range(count)]
    data = bytearray(encode_batch(records))
    at = data.index(bytes([0, 0, 2]), 61)  # attributes, time delta 0, offset delta 1 (zigzag: 2)
    data[at + 2] = 4  # then offset 2 comes twice, and 1 never
    with pytest.raises(InvalidRecordError, match="go up by one"):
        log.append_as_leader(with_field(bytes(data), ">I", 17, 0), 1, NOW)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_compacted_topic_refuses_records_without_keys(codec: str, count: int) -> None:
    log = keep(cleanup_policy=("compact",))
    records = [Record(0, NOW, b"k", b"v", ()) for _ in range(count)]
    log.append_as_leader(encode_batch(records, compression=codec), 1, NOW)
    records[-1] = Record(0, NOW, None, b"v", ())
    with pytest.raises(InvalidRecordError, match="without a key"):
        log.append_as_leader(encode_batch(records, compression=codec), 1, NOW)
    assert log.log_end_offset == count


def lying(codec: str, count: int, *, claimed: int = NOW, body: bytes | None = None) -> bytes:
    """Returns a batch whose header claims another maximum, or whose records have other bytes."""
    records = [Record(0, NOW + i, b"k", b"v" * 20) for i in range(count)]
    data = encode_batch(records, compression=codec, max_timestamp_ms=claimed)
    if body is None:
        return data
    packed = bytearray(data[:61] + (body if codec == "none" else compress(codec, body)))
    struct.pack_into(">i", packed, 8, len(packed) - 12)
    return with_field(bytes(packed), ">i", 57, count)


@pytest.mark.parametrize(("sent", "wanted"), [("none", "lz4"), ("gzip", "zstd"), ("snappy", "lz4")])
def test_what_is_compressed_anew_is_looked_at_first_as_by_kafka(sent: str, wanted: str) -> None:
    """Otherwise a batch with unreadable records would be stored if the topic has its own codec."""
    log = keep(compression_type=wanted)
    log.append_as_leader(lying(sent, 3, claimed=NOW + 900), 1, NOW)
    assert read_header(stored(log)).max_timestamp_ms == NOW + 2
    for body in (b"\x7e" * 40, b"", bytes(9)):
        with pytest.raises(InvalidRecordError):
            log.append_as_leader(lying(sent, 3, body=body), 1, NOW)
    strict = keep(compression_type=wanted, message_timestamp_before_max_ms=1)
    with pytest.raises(InvalidTimestampError):
        strict.append_as_leader(lying(sent, 3, claimed=NOW + 9), 1, NOW + 5)
    assert log.log_end_offset == 3


def test_flags_that_no_client_sets_go_when_a_batch_is_compressed_anew() -> None:
    """By a delete horizon compaction would remove the batch's tombstones at once."""
    log = keep(compression_type="lz4")
    odd = with_field(
        batch(2, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0),
        ">h",
        21,
        0x0250,
    )
    log.append_as_leader(odd, 1, NOW, verified=True)
    assert read_header(stored(log)).attributes == 0x13


@pytest.mark.parametrize("codec", CODECS)
def test_a_first_record_without_a_timestamp_is_not_too_old(codec: str) -> None:
    records = [Record(0, -1, b"k", b"v"), Record(0, NOW, b"k", b"v")]
    log = keep(message_timestamp_before_max_ms=1000)
    log.append_as_leader(encode_batch(records, compression=codec), 1, NOW)
    assert [r.timestamp_ms for r in decode_batch(stored(log))] == [-1, NOW]


def test_a_time_before_1970_is_too_old_where_there_is_a_bound() -> None:
    early = [Record(0, -5, b"k", b"v"), Record(0, -1, b"k", b"v")]
    with pytest.raises(InvalidTimestampError):
        keep(message_timestamp_before_max_ms=1000).append_as_leader(encode_batch(early), 1, NOW)
    keep().append_as_leader(encode_batch(early), 1, NOW)


@pytest.mark.parametrize(
    ("layout", "position"), [(">q", 0), (">i", 23), (">i", 57)], ids=["offset", "delta", "count"]
)
def test_a_negative_number_that_was_signed_is_invalid_not_corrupt(
    layout: str, position: int
) -> None:
    bad = with_field(batch(2), layout, position, -1)
    with pytest.raises(InvalidRecordError):
        keep().append_as_leader(bad, 1, NOW)
    if position:  # the offset lies outside of the CRC
        unsigned = bytearray(bad)
        unsigned[-1] ^= 1
        with pytest.raises(CorruptMessageError):
            keep().append_as_leader(bytes(unsigned), 1, NOW)
