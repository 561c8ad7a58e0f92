"""Slices of the tier, read from a store of objects: exact, past the brokers, and around every
hindrance.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tests.spark.direct.store import FakeTier, tiered
from tidemark.errors import CorruptMessageError
from tidemark.spark.direct import objects as direct_objects
from tidemark.spark.direct import ranges
from tidemark.spark.direct.batches import PieceCheck
from tidemark.spark.direct.leases import KeptLeases
from tidemark.spark.direct.objects import (
    Objects,
    ObjectUnreadableError,
    StoreUnavailableError,
    UrlExpiredError,
)
from tidemark.spark.direct.pieces import ObjectPiece, ReadLease, with_waiting
from tidemark.spark.direct.reading import DirectSlice
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.planning import plan
from tidemark.spark.slices import read_slice
from tidemark.spark.source import source_schema
from tiering.errors import RemoteReadBusyError

SCHEMA = to_arrow_schema(source_schema(("offset", "value")), timezone="UTC")


@pytest.fixture
def fake() -> Iterator[FakeTier]:
    """Offsets 0 to 149 are in three objects and on the broker, 150 to 199 on the broker alone."""
    with tiered() as made:
        yield made


def planned(fake: FakeTier, start: int, end: int, **more: str) -> list[OffsetRange]:
    limits = {
        "startingOffsets": f'{{"t":{{"0":{start},"1":0}}}}',
        "endingOffsets": f'{{"t":{{"0":{end},"1":0}}}}',
    }
    return plan(fake.options(**limits, **more))


def offsets_of(fake: FakeTier, slices: list[OffsetRange], **more: str) -> list[int]:
    options = fake.options(**more)
    batches = [batch for each in slices for batch in read_slice(options, each, SCHEMA)]
    rows = pa.Table.from_batches(batches, SCHEMA)
    assert rows["value"].to_pylist() == [f"v{o}".encode() for o in rows["offset"].to_pylist()]
    return list(rows["offset"].to_pylist())


@pytest.mark.parametrize("range_bytes", [300, 1 << 20])
def test_every_range_is_read_exactly_and_the_cold_part_from_no_broker(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", range_bytes)
    for start, end in ((0, 200), (13, 14), (49, 51), (7, 143), (149, 151)):
        slices = planned(fake, start, end)
        fake.served = 0
        cold = [each for each in slices if each.direct]
        assert offsets_of(fake, cold) == list(range(start, min(end, 150)))
        assert fake.served == 0
        assert offsets_of(fake, slices) == list(range(start, end))


def test_buffers_are_used_again(fake: FakeTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 300)
    (slice_,) = planned(fake, 0, 150)
    read = DirectSlice(fake.options(), slice_, SCHEMA)
    assert sum(batch.num_rows for batch in read.batches()) == 150
    assert read.buffers.made <= 6 < len(fake.store.ranges)


def test_a_piece_ends_where_another_lineage_goes_on(fake: FakeTier) -> None:
    """The old leader's segment reaches beyond the offset from which the new one's is read."""
    first, second, third = fake.pieces(0, 150)
    fake.store.objects["segment-1"] = b"".join(fake.log.batches[4:9])
    second = second._replace(
        start=40, base_offset=40, end_position=len(fake.store.objects["segment-1"])
    )
    (slice_,) = planned(fake, 0, 150)
    assert slice_.direct is not None
    pieces = (first._replace(end=40), second, third)
    moved = replace(slice_, direct=slice_.direct._replace(pieces=pieces))
    assert offsets_of(fake, [moved]) == list(range(150))
    assert fake.served == 0


@pytest.mark.parametrize("answers", [[503, 500, "cut", 429], ["cut", "cut"]])
def test_a_busy_store_is_asked_again(fake: FakeTier, answers: list[int | str]) -> None:
    waits: list[float] = []
    fake.store.next_answers = list(answers)
    objects, into = Objects(waits.append), memoryview(bytearray(50))
    objects.read(fake.store.url("segment-0"), 20, into)
    assert bytes(into) == fake.store.objects["segment-0"][20:70]
    assert len(waits) == len(answers) and waits == sorted(waits)
    objects.read(fake.store.url("segment-0"), 20, into)  # over the same connection
    assert len(waits) == len(answers)
    objects.close()


class Dripping:
    """A clock that is ten seconds later whenever it is asked; the store sends a byte each time."""

    def __init__(self, drip: threading.Semaphore) -> None:
        self.now_s = 0.0
        self._drip = drip

    def __call__(self) -> float:
        self._drip.release()
        self.now_s += 10
        return self.now_s


def test_a_store_that_trickles_is_asked_over_another_connection(fake: FakeTier) -> None:
    fake.store.next_answers = ["trickle"]
    clock = Dripping(fake.store.drip)
    objects, into = Objects(lambda _: None, now_s=clock), memoryview(bytearray(50))
    objects.read(fake.store.url("segment-0"), 20, into)
    assert bytes(into) == fake.store.objects["segment-0"][20:70]
    assert len(fake.store.ranges) == 2
    objects.close()


def test_a_store_that_only_trickles_is_one_that_does_not_answer(fake: FakeTier) -> None:
    fake.store.next_answers = ["trickle"] * 9
    clock = Dripping(fake.store.drip)
    objects, into = Objects(lambda _: None, now_s=clock), memoryview(bytearray(50))
    with pytest.raises(StoreUnavailableError, match="not whole after 60 s"):
        objects.read(fake.store.url("segment-0"), 0, into)
    assert len(fake.store.ranges) == 2, "the time of all tries is over"
    objects.close()


def test_a_slice_of_a_store_that_trickles_is_read_from_the_brokers(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is that of kafkaConsumer.pollTimeoutMs."""
    deadlines: list[float] = []

    def dripping(deadline_s: float) -> Objects:
        deadlines.append(deadline_s)
        clock = Dripping(fake.store.drip)
        return Objects(lambda _: None, deadline_s=deadline_s, now_s=clock)

    slices = planned(fake, 0, 150)
    monkeypatch.setattr(ranges, "Objects", dripping)
    fake.store.next_answers = ["trickle"] * 99
    more = {"kafkaConsumer.pollTimeoutMs": "60000"}
    assert offsets_of(fake, slices, **more) == list(range(150))
    assert set(deadlines) == {60.0}
    assert fake.served


def test_what_a_store_refuses_is_told_apart_and_shows_no_signature(fake: FakeTier) -> None:
    objects, into = Objects(lambda _: None), memoryview(bytearray(50))
    url = fake.store.url("segment-0")
    fake.store.signature = "s=2"
    with pytest.raises(UrlExpiredError, match="403") as expired:
        objects.read(url, 0, into)
    assert "s=1" not in str(expired.value)
    size = len(fake.store.objects["segment-0"])
    for name, position in (("gone", 0), ("segment-0", size - 10)):
        with pytest.raises(ObjectUnreadableError):
            objects.read(fake.store.url(name), position, into)
    assert len(fake.store.ranges) == 1, "an object that is too short is not asked for again"
    fake.store.next_answers = [500] * 5
    with pytest.raises(ObjectUnreadableError, match="500"):
        objects.read(fake.store.url("segment-0"), 0, into)
    for bad in ("ftp://h/x", "http:///x", "file:///no/such/file"):
        with pytest.raises(ObjectUnreadableError):
            objects.read(bad, 0, into)
    objects.read(fake.store.url("segment-0"), 0, into)
    objects.close()


def test_an_expired_url_is_replaced_by_a_new_one(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 100)
    slices = planned(fake, 3, 150)
    rows: list[int] = []
    for batch in read_slice(fake.options(), slices[0], SCHEMA):
        rows += batch["offset"].to_pylist()
        if rows[-1] > 60:
            fake.store.signature = "s=2"
    assert rows == list(range(3, 150))
    assert fake.served == 0
    assert [len(one.segment_ids) for one in fake.asked if one.segment_ids] in ([2], [1])


def test_where_no_new_url_helps_the_brokers_do(fake: FakeTier) -> None:
    slices = planned(fake, 3, 150)
    fake.store.signature = "s=2"
    refused = DirectSlice(fake.options(), slices[0], SCHEMA, renew_urls=lambda *a: a[2])
    rows = [o for batch in refused.batches() for o in batch["offset"].to_pylist()]
    assert rows == list(range(3, 150)) and fake.served > 0
    fake.not_direct = "switched off"
    assert offsets_of(fake, slices) == list(range(3, 150))
    fake.not_direct, fake.error_code = "", 42
    assert offsets_of(fake, slices) == list(range(3, 150))


def test_a_segment_without_a_new_url_is_not_passed_over(fake: FakeTier) -> None:
    slices = planned(fake, 3, 150)
    fake.store.signature = "s=2"
    del fake.store.objects["segment-1"]
    assert offsets_of(fake, slices) == list(range(3, 150))
    assert {name for name, *_ in fake.store.ranges} == {"segment-0"}


def test_an_object_that_is_gone_is_loss_only_if_the_log_lost_it(fake: FakeTier) -> None:
    slices = planned(fake, 0, 150)
    del fake.store.objects["segment-1"]
    assert offsets_of(fake, slices) == list(range(150))
    fake.log.log_start_offset = 90
    with pytest.raises(DataLossError, match="offset 50 of 50 to 149 is not in the log"):
        offsets_of(fake, slices)
    rest = offsets_of(fake, slices, failOnDataLoss="false")
    assert rest == [*range(50), *range(90, 150)]


@pytest.mark.parametrize("tolerant", ["true", "false"])
def test_what_a_store_that_is_away_may_have_is_no_loss(
    fake: FakeTier, tolerant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease holds the object, the log has given it up: nothing is passed over in silence."""
    monkeypatch.setattr(direct_objects, "_FIRST_WAIT_S", 0.0)
    slices = planned(fake, 50, 150)
    fake.log.log_start_offset = 90
    overloaded: list[int | str] = [503] * 15  # five tries of each range under way
    hindrances: list[tuple[list[int | str], str, int]] = [
        (overloaded, "s=1", 0),
        ([], "s=2", 42),  # the URL is refused, and the leader gives no other
    ]
    for answers, signature, error_code in hindrances:
        fake.store.next_answers, fake.store.signature = answers, signature
        fake.error_code = error_code
        with pytest.raises(StoreUnavailableError, match=r"offset 50 .* may still have them"):
            offsets_of(fake, slices, failOnDataLoss=tolerant)
    fake.store.next_answers, fake.store.signature = [], "s=1"
    assert offsets_of(fake, slices, failOnDataLoss=tolerant) == list(range(50, 150))


def test_a_damaged_object_changes_nothing_for_the_brokers_are_asked_for_the_rest(
    fake: FakeTier,
) -> None:
    (slice_,) = planned(fake, 0, 150)
    for number, position in ((0, 7), (0, 400), (1, 500), (2, -1), (2, None)):
        name = f"segment-{number}"
        sound = fake.store.objects[name]
        damaged = bytearray(sound)
        if position is None:
            damaged = damaged[:-5]
        else:
            damaged[position] ^= 1
        fake.store.objects[name], fake.served = bytes(damaged), 0
        assert offsets_of(fake, [slice_]) == list(range(150)), position
        assert fake.served > 0
        fake.store.objects[name] = sound


def test_no_bit_of_a_batch_can_change_without_notice(fake: FakeTier) -> None:
    """Not even those of base offset, length and leader epoch, which no CRC covers."""
    piece = fake.pieces(3, 50)[0]
    sound = fake.store.objects["segment-0"]
    size = len(fake.log.batches[0])

    def check(content: bytes, piece: ObjectPiece = piece) -> None:
        read = PieceCheck(piece, epoch_max=0)
        if read.whole_batches(memoryview(content)) < len(content):
            raise CorruptMessageError("a rest")
        read.finish()

    check(sound)
    for position in (*range(size + 61), *range(len(sound) - size, len(sound) - size + 61)):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptMessageError):
                check(bytes(damaged))
    alone = piece._replace(start=3, end=9)
    for position in range(size):
        for bit in range(8):
            damaged = bytearray(sound[:size])
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptMessageError):
                check(bytes(damaged), alone)
    with pytest.raises(CorruptMessageError):
        check(sound[size:])  # begins above the start
    with pytest.raises(CorruptMessageError):
        check(sound[: -len(fake.log.batches[4])])


def test_a_reader_that_stops_early_does_not_wait_for_a_store_that_hangs(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 300)
    (slice_,) = planned(fake, 0, 150)
    rows = read_slice(fake.options(), slice_, SCHEMA)
    fake.store.next_answers = [206, "hang", "hang"]
    next(iter(rows))
    begun_s = time.monotonic()
    rows.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begun_s < 15, "it waited until the store's time was up"
    assert fake.served == 0
    own = [each for each in threading.enumerate() if each.name.startswith("tidemark-object")]
    for each in own:
        each.join(10)
    assert not any(each.is_alive() for each in own)
    fake.store.goes_on.set()
    assert not [each for each in threading.enumerate() if each.name == "tidemark-slice"]


def test_a_read_that_ends_while_it_connects_asks_for_nothing(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, connect = Objects(), http.client.HTTPConnection.connect

    def ended(connection: http.client.HTTPConnection) -> None:
        objects.abort()
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", ended)
    with pytest.raises(ObjectUnreadableError, match="was ended"):
        objects.read(fake.store.url("segment-0"), 0, memoryview(bytearray(50)))
    assert not fake.store.ranges


def test_some_ranges_are_under_way_at_once_and_no_more(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 200)
    (slice_,) = planned(fake, 0, 150)
    assert offsets_of(fake, [slice_]) == list(range(150))
    assert 1 < fake.store.most_at_once <= ranges.AHEAD


def test_batches_larger_than_a_range_and_its_room_are_read(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 50)
    monkeypatch.setattr(ranges, "_ROOM_BYTES", 60)
    slices = planned(fake, 41, 50)
    assert offsets_of(fake, slices) == list(range(41, 50)) and fake.served == 0


def test_a_piece_that_lacks_batches_is_not_taken_for_whole(fake: FakeTier) -> None:
    (slice_,) = planned(fake, 0, 150)
    assert slice_.direct is not None
    for number, batch in ((0, 4), (2, 14)):
        pieces = list(slice_.direct.pieces)
        short = pieces[number].end_position - len(fake.log.batches[batch])
        pieces[number] = pieces[number]._replace(end_position=short)
        lacking = replace(slice_, direct=slice_.direct._replace(pieces=tuple(pieces)))
        assert offsets_of(fake, [lacking]) == list(range(150))


def test_a_lease_is_renewed_each_third_of_its_time_whoever_reads() -> None:
    now, renewed = [0.0], []
    leases = KeptLeases(
        lambda _, offsets, lease: renewed.append((now[0], offsets.partition, lease.id)),
        lambda: now[0],
        lambda work: work(),
    )
    with tiered() as fake:
        options = fake.options()
        (one,) = planned(fake, 0, 150)
    assert one.direct is not None
    direct = one.direct._replace(lease=ReadLease("a", 0, 150, 300, 0))
    one = replace(one, direct=direct)
    for now[0] in range(0, 420, 20):
        leases.touch(options, one)
    assert renewed == [(100, 0, "a"), (200, 0, "a"), (300, 0, "a"), (400, 0, "a")]
    leases.touch(options, replace(one, direct=direct._replace(lease=None)))
    assert len(renewed) == 4


def test_tasks_renew_the_leases_of_partitions_that_wait_for_one() -> None:
    """A job of many slices on few workers, for longer than its leases last."""
    now, until, fails = [0.0], dict.fromkeys(range(6), 300.0), set[int]()

    def renew(_: object, offsets: OffsetRange, lease: ReadLease) -> None:
        if offsets.partition in fails:
            raise RemoteReadBusyError
        assert until[offsets.partition] > now[0], "it had ended"
        until[offsets.partition] = now[0] + lease.lease_ms

    leases = KeptLeases(renew, lambda: now[0], lambda work: work(), lambda: 0.9)
    with tiered() as fake:
        options = fake.options()
        (one,) = planned(fake, 0, 150)
    assert one.direct is not None
    held = one.direct._replace(lease=ReadLease("a", 0, 9, 300, 0))
    slices = with_waiting([replace(one, partition=n, direct=held) for n in range(6)], most=4)
    assert [len(each.direct.waiting) for each in slices if each.direct] == [4, 4, 3, 2, 1, 0]
    for now[0] in range(0, 1_200, 10):
        leases.touch(options, slices[1])
    assert min(until[number] for number in range(1, 6)) > 1_200 > until[0]
    fails |= {2, 3}
    for now[0] in range(1_200, 1_610, 10):
        leases.touch(options, slices[1])
    assert until[5] > 1_610 > until[2], "some that fail do not hold the others up"
