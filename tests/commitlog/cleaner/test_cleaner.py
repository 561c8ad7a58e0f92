"""Compaction: what is cleaned, what stays, and that the log stays consistent meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog.cleaner.choice import SegmentSizes, cleanable, group_segments, qualifies
from commitlog.cleaner.io import Throttle
from commitlog.cleaner.manager import LogCleaner
from commitlog.cleaner.offset_map import OffsetMap, OffsetMapFullError
from commitlog.cleaner.states import CleaningState, CleaningStates
from commitlog.disk.files import Directory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from commitlog.dump import dump_file
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from commitlog.manager.manager import LogManager
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, TP, config, records_of
from tests.commitlog.log.test_golden import copy_of
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch, encode_control_batch, iter_batches
from tidemark.records.control import EndTransactionMarker
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicPartition

DAY_MS = 86_400_000


class World:
    """A node's logs and their cleaner, with a clock of its own."""

    def __init__(
        self, directory: Directory | None = None, server: dict[str, str] | None = None, **topic: Any
    ) -> None:
        self.directory = directory or MemoryDirectory()
        self.now = NOW
        self.server = parse_server_config(
            {
                "process.roles": "broker",
                "node.id": "1",
                "controller.quorum.voters": "9@localhost:1",
                "log.cleaner.io.buffer.size": "4096",
                "log.cleaner.dedupe.buffer.size": "65536",
                **(server or {}),
            }
        )
        self.topic = config(
            **{
                "cleanup_policy": ("compact",),
                "min_cleanable_dirty_ratio": 0.0,
                "segment_bytes": 1000,
                **topic,
            }
        )
        self.open()

    def open(self) -> None:
        self.logs = LogManager(
            [self.directory],
            self.server,
            now_ms=lambda: self.now,
            topic_config=lambda _: self.topic,
        )
        self.logs.open()
        self.cleaner = LogCleaner(self.logs, self.server, now_ms=lambda: self.now)
        self.cleaner.start()

    def log(self, partition: TopicPartition = TP) -> Log:
        return self.logs.get_or_create(partition, None, self.topic)

    def put(self, *pairs: tuple[str, str | None], **options: Any) -> None:
        """Appends one batch of records and replicates everything."""
        records = [
            Record(0, self.now + i, key.encode(), None if value is None else value.encode())
            for i, (key, value) in enumerate(pairs)
        ]
        log = self.log()
        log.append_as_leader(
            encode_batch(records, **options), 1, self.now, origin=AppendOrigin.COORDINATOR
        )
        log.update_high_watermark(log.log_end_offset)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        marker = encode_control_batch(
            [EndTransactionMarker(committed, 0)],
            base_offset=0,
            timestamp_ms=self.now,
            partition_leader_epoch=1,
            producer_id=producer_id,
            producer_epoch=0,
        )
        log = self.log()
        log.append_as_leader(marker, 1, self.now, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)

    def clean(self) -> None:
        """Rolls, so that everything before is inactive, and cleans until nothing is dirty."""
        self.log().roll(self.now)
        self.clean_as_is()

    def clean_as_is(self) -> None:
        for _ in range(20):
            if self.cleaner.clean_once() is None:
                break
        assert self.cleaner.uncleanable == {}
        self.check()

    def check(self) -> None:
        """Asserts the result of a cleaning: contiguous segments, matching indexes."""
        log = self.log()
        log.validate()
        self.cleaner.states.validate()
        for one, following in zip(log.segments, log.segments[1:], strict=False):
            assert one.next_offset == following.base_offset
            assert one.size_bytes <= self.topic.segment_bytes
        for record in records_of(log):
            hit = log.offset_for_timestamp(record.timestamp_ms)
            assert hit is not None
            assert hit.offset <= record.offset

    def found(self) -> list[tuple[int, str, str | None]]:
        """Returns offset, key and value of all records, without markers."""
        log = self.log()
        markers = {h.base_offset for s in log.segments for h in s.headers() if h.is_control}
        return [
            (r.offset, (r.key or b"").decode(), None if r.value is None else r.value.decode())
            for r in records_of(log)
            if r.offset not in markers
        ]


def test_an_empty_batch_has_no_time_that_a_search_could_be_led_to() -> None:
    world = World()
    for number in range(40):
        world.now += 1000 if number == 20 else -1  # a dropped record has the greatest timestamp
        world.put((f"k{number % 5}", "v" * 90))
    world.clean()
    empty = [h for s in world.log().segments for h in s.headers() if not h.record_count]
    assert empty
    assert all(header.max_timestamp_ms == 0 for header in empty)
    directory = world.log().directory
    for segment in world.log().segments[:-1]:
        for name in (segment.time_index.name, segment.offset_index.name):
            entries = list(dump_file(directory, name))
            assert not any(entry["kind"] in ("damage", "mismatch") for entry in entries)
            times = [e["timestamp_ms"] for e in entries if e["kind"] == "time_index"]
            assert times == sorted(
                set(times) & {record.timestamp_ms for record in records_of(world.log())}
            )


def test_only_the_last_value_of_each_key_stays_at_its_offset() -> None:
    world = World()
    for number in range(60):
        world.put((f"k{number % 7}", f"v{number}"), ("same", f"s{number}"))
    before = world.found()
    world.clean()
    last = {key: (offset, key, value) for offset, key, value in before}
    assert world.found() == sorted(last.values())
    world.put(("k0", "one more"))
    world.clean()
    assert len(world.log().segments) == 2, "small segments are merged by the next pass"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rewritten_batches_keep_codec_headers_and_timestamps(codec: str) -> None:
    world = World(compression_type="producer")
    records = [
        Record(0, NOW + 50 - i, b"k%d" % (i % 3), b"v%d" % i, (("h", b"x"), ("n", None)))
        for i in range(9)
    ]
    log = world.log()
    log.append_as_leader(encode_batch(records, compression=codec), 1, NOW)
    log.update_high_watermark(9)
    world.clean()
    kept = records_of(log)
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in kept] == [
        (i, NOW + 50 - i, b"k%d" % (i % 3), b"v%d" % i, (("h", b"x"), ("n", None)))
        for i in (6, 7, 8)
    ]
    ((_, header),) = iter_batches(log.read(0, 10_000).records)
    assert header.compression == codec
    assert (header.base_offset, header.last_offset) == (0, 8)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (NOW + 44, NOW + 44)


def test_a_tombstone_goes_in_the_second_pass_after_its_horizon() -> None:
    world = World(delete_retention_ms=DAY_MS)
    world.put(("a", "1"), ("b", "2"))
    world.put(("a", None))
    world.clean()
    assert world.found() == [(1, "b", "2"), (2, "a", None)]
    horizons = [h.delete_horizon_ms for _, h in iter_batches(world.log().read(2, 10_000).records)]
    assert horizons == [world.now + DAY_MS]
    world.now += DAY_MS - 1
    world.put(("c", "3"))
    world.clean()
    assert (2, "a", None) in world.found(), "its horizon is not over"
    world.now += 1
    world.put(("c", "4"))
    world.clean()
    assert world.found() == [(1, "b", "2"), (4, "c", "4")]
    assert world.log().log_end_offset == 5


def test_records_above_the_last_stable_offset_and_the_active_segment_stay() -> None:
    world = World()
    world.put(("a", "1"))
    world.put(("t", "open"), producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    world.put(("a", "2"))
    world.clean()
    assert [value for _, _, value in world.found()] == ["1", "open", "2"]
    world.end_transaction(4, committed=True)
    world.clean()
    assert [value for _, _, value in world.found()] == ["open", "2"]
    world.put(("a", "3"))
    world.clean_as_is()
    assert [value for _, _, value in world.found()] == ["open", "2", "3"]


def test_aborted_records_go_and_their_marker_stays_as_long_as_needed() -> None:
    world = World(delete_retention_ms=1000)
    world.put(("a", "1"))
    world.put(("a", "no"), producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    world.put(("x", "yes"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    world.end_transaction(4, committed=False)
    world.end_transaction(5, committed=True)
    world.clean()
    assert [f[1:] for f in world.found() if f[2] is not None and f[1] in "ax"] == [
        ("a", "1"),
        ("x", "yes"),
    ]
    log = world.log()
    (aborted,) = log.aborted_transactions(0, log.log_end_offset)
    assert (aborted.producer_id, aborted.last_offset) == (4, 3)
    # the producer's last batch stays, empty, to keep its sequence
    assert log.producers.producers[4].last_sequence == 0
    log.producers.producers.clear()
    for _ in range(3):
        world.now += 2000
        world.put(("z", str(world.now)))
        world.clean()
    markers = [h for s in log.segments for h in s.headers() if h.is_control and h.record_count]
    assert [h.producer_id for h in markers] == [5], "the marker of a transaction without records"
    assert log.aborted_transactions(0, log.log_end_offset) == []


def test_what_a_cleaning_takes_of_an_aborted_transaction_is_no_damage_of_its_index(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    for number in range(2):
        of_producer: dict[str, Any] = {"producer_id": 4, "producer_epoch": 0}
        world.put(("a", "no"), base_sequence=number, transactional=True, **of_producer)
    world.end_transaction(4, committed=False)
    world.put(("z", "1"))
    world.clean()
    (index,) = [s.txn_index for s in world.log().segments if s.txn_index.entries()]
    assert [entry.first_offset for entry in index.entries()] == [0], "Kafka's cleaner keeps it so"
    world.logs.close()
    world.open()
    log = world.log()
    (aborted,) = log.aborted_transactions(0, log.log_end_offset)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (4, 1, 2)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_the_last_batch_of_an_active_producer_stays_as_an_empty_one() -> None:
    world = World()
    for number in range(3):
        world.put(("p", f"{number}"), producer_id=9, producer_epoch=2, base_sequence=number)
    world.put(("p", "other"))
    world.clean()
    log = world.log()
    assert [value for *_, value in world.found()] == ["other"]
    empties = [h for s in log.segments for h in s.headers() if h.record_count == 0]
    assert [(h.producer_id, h.last_sequence) for h in empties] == [(9, 2)]
    log.close()
    for name in log.directory.list():
        if name.endswith(".snapshot"):
            log.directory.remove(name)
    again = open_log(log.directory, TP, world.topic, now_ms=NOW)
    assert again.producers.producers[9].last_sequence == 2


def test_a_follower_copies_a_cleaned_log_with_its_gaps() -> None:
    world = World()
    for number in range(80):
        world.put((f"k{number % 9}", f"v{number}" * 5))
    world.clean()
    leader, follower = world.log(), world.log(TopicPartition("events", 1))
    while follower.log_end_offset < leader.log_end_offset:
        fetched = leader.read(follower.log_end_offset, 300)
        assert fetched.records
        follower.append_as_follower(fetched.records, world.now, gaps_allowed=True)
    assert records_of(follower) == records_of(leader)
    assert follower.log_end_offset == leader.log_end_offset
    follower.validate()
    as_deleting = config(cleanup_policy=("delete",), segment_bytes=1000)
    follower.flush()
    again = open_log(follower.directory, TP, as_deleting, now_ms=NOW)
    assert records_of(again) == records_of(leader), "a changed policy makes no gap a loss"


def test_every_offset_of_a_cleaned_log_can_be_read_from() -> None:
    world = World()
    for number in range(50):
        world.put((f"k{number % 5}", f"v{number}"))
    world.clean()
    log = world.log()
    kept = [r.offset for r in records_of(log)]
    for offset in range(log.log_end_offset):
        rest: list[int] = []
        position = offset
        while position < log.log_end_offset:
            result = log.read(position, 200)
            assert result.next_offset > position, "a reader would stand still"
            rest += [o for o in kept if max(position, result.base_offset) <= o < result.next_offset]
            position = result.next_offset
        assert rest == [o for o in kept if o >= offset]


def test_keys_that_do_not_fit_are_cleaned_segment_by_segment() -> None:
    world = World(server={"log.cleaner.dedupe.buffer.size": "4096"})  # about 150 keys
    for number in range(400):
        world.put((f"k{number}", "x" * 40))
    world.put(("k1", "last"))
    world.log().roll(world.now)
    first = world.cleaner.clean_once()
    assert first is not None
    assert 0 < first.end_offset < 200
    world.clean_as_is()
    assert world.cleaner.checkpoint_of(TP) == 401
    assert len(world.found()) == 400


def test_a_segment_that_does_not_fit_makes_only_its_own_log_uncleanable() -> None:
    world = World(server={"log.cleaner.dedupe.buffer.size": "4096"}, segment_bytes=100_000)
    for number in range(300):
        world.put((f"k{number}", ""))
    world.log().roll(world.now)
    other = world.log(TopicPartition("events", 1))
    other.append_as_leader(encode_batch([Record(0, NOW, b"k", b"v")] * 2), 1, NOW)
    other.update_high_watermark(2)
    other.roll(world.now)
    assert world.cleaner.clean_once() is not None
    assert world.cleaner.clean_once() is not None
    assert world.cleaner.clean_once() is None
    assert "log.cleaner.dedupe.buffer.size" in world.cleaner.uncleanable[TP]
    assert [r.offset for r in records_of(other)] == [1]
    assert len(records_of(world.log())) == 300


def test_batches_of_which_one_fits_into_a_segment_are_cleaned() -> None:
    world = World(segment_bytes=4000)
    for number in range(4):
        world.put((f"k{number}", "v" * 600), ("same", "w"))
    world.topic = config(
        cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=1000
    )
    world.log().config = world.topic
    world.clean()
    assert [key for _, key, _ in world.found()] == ["k0", "k1", "k2", "k3", "same"]


def test_a_damaged_batch_makes_a_log_uncleanable_and_changes_nothing() -> None:
    world = World()
    for number in range(30):
        world.put(("k", f"v{number}"))
    world.log().roll(world.now)
    before = world.found()
    log = world.log()
    directory = world.directory.subdirectory(str(TP))
    assert isinstance(directory, MemoryDirectory)
    directory.flip_bit(log.segments[0].log_file, log.segments[0].size_bytes - 2)
    world.cleaner.clean_once()
    assert "CRC" in world.cleaner.uncleanable[TP]
    directory.flip_bit(log.segments[0].log_file, log.segments[0].size_bytes - 2)
    assert world.found() == before
    assert not [n for n in directory.list() if n.endswith((".cleaned", ".swap"))]


def test_a_truncation_aborts_a_cleaning_under_way() -> None:
    world = World()
    for number in range(60):
        world.put((f"k{number % 3}", f"v{number}"))
    log = world.log()
    log.roll(world.now)
    cleaning = world.cleaner.choose()
    assert cleaning is not None
    cleaning.build_map(world.cleaner.new_map())
    group = cleaning.next_group()
    assert group is not None
    log.truncate_to(20, world.now)
    assert world.cleaner.states.get(TP) is CleaningState.ABORTED
    from commitlog.cleaner.io import CleaningAbortedError

    with pytest.raises(CleaningAbortedError) as caught:
        world.cleaner.swap(cleaning, group)
    world.cleaner.finish(cleaning, caught.value)
    assert world.cleaner.states.get(TP) is None
    assert [o for o, *_ in world.found()] == list(range(20))
    assert not [n for n in log.directory.list() if n.endswith(".cleaned")]


def test_a_truncation_takes_the_clean_part_back() -> None:
    world = World()
    for number in range(60):
        world.put((f"k{number % 3}", f"v{number}"))
    world.clean()
    assert world.cleaner.checkpoint_of(TP) == 60
    world.log().truncate_to(59, world.now)
    world.put(("k0", "new"), ("k1", "new"))
    assert (world.cleaner.checkpoint_of(TP) or 0) <= 59


def test_a_deleted_topic_calls_its_cleaning_off() -> None:
    world = World()
    for number in range(60):
        world.put(("k", f"v{number}"))
    world.log().roll(world.now)
    cleaning = world.cleaner.choose()
    assert cleaning is not None
    world.logs.delete(TP)
    assert cleaning.io.must_stop()
    assert world.cleaner.checkpoint_of(TP) is None


def test_the_files_that_a_cleaning_replaced_are_removed_after_their_delay() -> None:
    """Also if a pass of the purge came between the cleaning's last flush and its swap."""
    world = World()
    for number in range(20):
        world.put(("key", f"v{number}"))
    world.log().roll(world.now)
    cleaning = world.cleaner.choose()
    assert cleaning is not None
    cleaning.build_map(world.cleaner.new_map())
    group = cleaning.next_group()
    assert group is not None
    assert world.logs.purge_deleted(world.now) == 0
    world.cleaner.swap(cleaning, group)
    world.cleaner.finish(cleaning)
    assert world.logs.purge_deleted(world.now + world.topic.file_delete_delay_ms) > 0
    assert not any(name.endswith(".deleted") for name in world.log().directory.list())


def test_compact_and_delete_does_both() -> None:
    world = World(cleanup_policy=("compact", "delete"), retention_ms=1000)
    for number in range(30):
        world.put((f"k{number % 3}", f"old{number}"))
    world.clean()
    world.now += 2000
    world.put(("k0", "new"))
    delete_expired(world.log(), world.now)
    assert [value for *_, value in world.found()] == ["new"]


def test_the_checkpoint_is_kafkas_and_is_read_again() -> None:
    world = World()
    for number in range(40):
        world.put(("k", f"v{number}"))
    world.clean()
    assert world.directory.read("cleaner-offset-checkpoint") == b"0\n1\nevents 0 40\n"
    world.logs.close()
    world.open()
    assert world.cleaner.checkpoint_of(TP) == 40
    assert world.cleaner.clean_once() is None


def test_the_log_that_kafka_compacted_opens_and_is_cleaned(tmp_path: Path) -> None:
    copy_of("compacted-0", tmp_path)
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\ncompacted 0 320\n")
    world = World(OsDirectory(tmp_path), segment_bytes=1 << 20)
    partition = TopicPartition("compacted", 0)
    log = world.logs.get(partition)
    assert log is not None
    before = {r.key: (r.offset, r.value) for r in records_of(log)}
    log.update_high_watermark(log.log_end_offset)
    log.roll(world.now)
    world.now = 1_795_254_998_000
    assert world.cleaner.clean_once() is not None
    assert world.cleaner.uncleanable == {}
    kept = records_of(log)
    assert {r.key: (r.offset, r.value) for r in kept} == before
    assert len(kept) == len(before)
    shutil.rmtree(tmp_path)


# --- the parts


def test_the_choice_follows_ratio_and_lags() -> None:
    world = World(min_cleanable_dirty_ratio=0.5)
    for number in range(60):
        world.now += 10
        world.put((f"key{number % 50}", f"v{number}"))
    log = world.log()
    log.roll(world.now)
    everything = cleanable(log, None, world.now)
    assert (everything.first_dirty_offset, everything.end_offset) == (0, 60)
    assert everything.dirty_ratio == 1.0
    half = log.segments[len(log.segments) // 2].base_offset
    part = cleanable(log, half, world.now)
    assert 0.3 < part.dirty_ratio < 0.7
    assert part.clean_bytes + part.dirty_bytes == log.size_bytes
    late = cleanable(log, log.segments[-2].base_offset, world.now)
    assert not qualifies(late, log.config)
    assert cleanable(log, 1000, world.now).first_dirty_offset == 0, "a checkpoint beyond the end"
    log.config = config(cleanup_policy=("compact",), min_compaction_lag_ms=200)
    young = cleanable(log, None, world.now)
    holder = next(s for s in reversed(log.segments) if s.base_offset <= young.end_offset)
    assert holder.max_timestamp_ms > world.now - 200
    log.config = config(cleanup_policy=("compact",), max_compaction_lag_ms=100)
    late = cleanable(log, log.segments[-2].base_offset, world.now + 1000)
    assert late.is_overdue
    assert qualifies(late, log.config)


def test_groups_stay_within_a_segments_limits() -> None:
    sizes = [SegmentSizes(i * 10, i * 10 + 10, 40, 8 * (i % 3), 12) for i in range(10)]
    groups = group_segments(sizes, 100, 1000)
    assert [len(group) for group in groups] == [2, 2, 2, 2, 2]
    assert [len(g) for g in group_segments(sizes, 10_000, 30)] == [2, 2, 2, 2, 2]
    far = [SegmentSizes(0, 10, 1, 0, 0), SegmentSizes(10, 2**31 + 5, 1, 0, 0)]
    assert len(group_segments(far, 100, 100)) == 2


def test_the_map_takes_24_bytes_a_key_and_refuses_one_too_many() -> None:
    import numpy as np

    from tidemark.records.kernels.compact import shape_of, siphash

    out = np.zeros(2, np.int64)
    siphash(np.zeros(0, np.uint8), *np.frombuffer(bytes(range(16)), np.int64).tolist(), out)
    assert out.tobytes().hex() == "a3817f04ba25a8e66df67214c7550293", "the paper's test vector"
    keys = OffsetMap(24 * 100, 0.9)
    assert keys.entries_max == 90
    batch = encode_batch([Record(i, NOW, b"%d" % i, b"") for i in range(91)])
    data = np.frombuffer(batch, np.uint8)
    with pytest.raises(OffsetMapFullError, match="dedupe"):
        keys.put(data[HEADER_BYTES:], shape_of(0, 90, NOW, 91, False), 0)
    keys = OffsetMap(24 * 100, 0.9)
    with pytest.raises(OffsetMapFullError, match="dedupe"):
        keys.put_batches(data, 0, np.zeros(1, np.int64), np.zeros(4, np.int64))


def test_states_allow_what_the_table_says() -> None:
    states = CleaningStates()
    states.begin(TP)
    with pytest.raises(ValueError, match="in progress"):
        states.begin(TP)
    states.pause(TP)
    states.pause(TP)
    assert states.get(TP) is CleaningState.ABORTED
    assert states.finish(TP) is False
    assert states.get(TP) is CleaningState.PAUSED
    states.resume(TP)
    states.validate()
    with pytest.raises(ValueError, match="paused"):
        states.begin(TP)
    states.resume(TP)
    assert states.get(TP) is None
    with pytest.raises(ValueError, match="not paused"):
        states.resume(TP)
    states.begin(TP)
    assert states.finish(TP) is True
    states.validate()


def test_the_throttle_waits_for_what_is_above_the_rate() -> None:
    now, waits = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    throttle = Throttle(1000, clock_s=lambda: now[0], sleep_s=sleep)
    for _ in range(5):
        throttle.spend(100)
    assert now[0] == pytest.approx(0.5)
    now[0] += 10
    throttle.spend(100)
    assert waits[-1] == pytest.approx(0.1), "time that was not used is not saved"


def test_an_unlimited_cleaner_does_not_wait() -> None:
    world = World()
    assert isinstance(world.topic, TopicConfig)
    for number in range(30):
        world.put(("k", f"v{number}"))
    world.clean()
    assert len(world.found()) == 1
