"""The loader: publishing, waiting, snapshots, and logs that cannot be applied."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest

from quorum.image import MetadataDelta, MetadataImage, PartitionRegistration
from quorum.image import records as r
from quorum.replica.client import CommittedBatch, LeaderAndEpoch
from quorum.replica.loader import WRITTEN_PER_PORTION, MetadataLoader, in_portions
from snapshot.names import SnapshotId
from tests import virtual_time
from tests.quorum.controller.fake_raft import FakeQuorum, FakeSnapshot
from tests.quorum.controller.scenario import controller_config
from tests.quorum.image.strategies import History
from tidemark.errors import BrokerNotAvailableError, FatalError
from tidemark.v1 import metadata_pb2 as pb


class Recorder:
    """A publisher that records its updates, and checks each delta against its image."""

    def __init__(self, fails: bool = False) -> None:
        self.images: list[MetadataImage] = []
        self.fails = fails

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        before = self.images[-1] if self.images else MetadataImage()
        assert delta.image == before
        assert delta.apply(image.offset, image.epoch) == image
        self.images.append(image)
        if self.fails:
            raise RuntimeError("a publisher's bug")


def clock() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def values(seed: int, count: int) -> list[bytes]:
    return [r.encode_record(record) for record in History(random.Random(seed)).records(count)]


def values_of_one_level(seed: int, count: int) -> list[bytes]:
    """As `values`, without changes of feature levels: each of them asks for a snapshot at once."""
    records = History(random.Random(seed)).records(2 * count)
    kept = [r.encode_record(record) for record in records if not record.HasField("feature_level")]
    return kept[:count]


def test_publishers_hear_of_every_change_in_order_and_late_ones_get_all() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        early, late = Recorder(), Recorder()
        loader.add_publisher(early)
        quorum.node(1).register(loader)
        quorum.elect(1)
        history = values(1, 30)
        for start in range(0, 30, 5):
            quorum.append(history[start : start + 5])
        quorum.commit(2)
        loader.add_publisher(late)
        quorum.commit()
        assert len(late.images) == 2
        assert early.images[-1] == late.images[-1] == loader.image
        assert loader.image.end_offset == quorum.high_watermark

    virtual_time.run(main())


def test_nothing_is_published_before_the_image_has_caught_up() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        for value in values(2, 10):
            quorum.append([value])
        quorum.commit()
        batches = list(quorum.committed)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        heard = Recorder()
        loader.add_publisher(heard)
        loader.handle_commit(batches[:4])
        assert (loader.caught_up, heard.images) == (False, [])
        waiting = asyncio.ensure_future(loader.wait_for_offset(2))
        await asyncio.sleep(1)
        assert not waiting.done()
        loader.handle_commit(batches[4:])
        await asyncio.sleep(1)
        assert (waiting.done(), heard.images) == (False, [])
        loader.handle_caught_up()
        await waiting
        assert [image.offset for image in heard.images] == [9]

    virtual_time.run(main())


def test_waiters_wake_in_time_and_a_closed_loader_lets_nobody_wait() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        waits = [asyncio.ensure_future(loader.wait_for_offset(i)) for i in (3, 1, 99)]
        for value in values(3, 4):
            quorum.append([value])
        quorum.commit(2)
        await asyncio.sleep(0)
        assert [w.done() for w in waits] == [False, True, False]
        quorum.commit()
        await asyncio.sleep(0)
        assert [w.done() for w in waits] == [True, True, False]
        await loader.close()
        with pytest.raises(BrokerNotAvailableError):
            await waits[2]
        with pytest.raises(BrokerNotAvailableError):
            await loader.wait_for_offset(1_000)

    virtual_time.run(main())


def test_a_failing_publisher_does_not_keep_the_others_from_hearing() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        quorum.elect(1)
        bad, good = Recorder(), Recorder()
        loader.add_publisher(bad)
        loader.add_publisher(good)
        bad.fails = True
        quorum.append(values(4, 3))
        quorum.commit()
        assert loader.publisher_errors == 1
        assert good.images[-1] == loader.image

    virtual_time.run(main())


def test_a_publisher_that_fails_at_its_first_image_stops_the_process() -> None:
    async def main() -> None:
        quorum = FakeQuorum()
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        quorum.elect(1)
        with pytest.raises(FatalError, match="Recorder"):
            loader.add_publisher(Recorder(fails=True))

    virtual_time.run(main())


def test_a_record_that_can_not_be_applied_stops_the_process() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        quorum.append([b"\xff\xff\xff"])
        with pytest.raises(FatalError, match="offset 0"):
            quorum.commit()

    virtual_time.run(main())


def test_snapshots_are_written_by_bytes_and_a_new_node_starts_from_one() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        config = controller_config(
            metadata_log_max_record_bytes_between_snapshots="500",
            metadata_log_max_snapshot_interval_ms="0",
        )
        raft = quorum.node(1)
        loader = MetadataLoader(raft, config, clock)
        raft.register(loader)
        for value in values(5, 100):
            quorum.append([value])
            quorum.commit()
            await asyncio.sleep(0.001)
        assert loader.snapshots_written == len(raft.snapshots) > 3
        other = quorum.node(2)
        other.snapshots = raft.snapshots
        follower = MetadataLoader(other, config, clock)
        other.register(follower)
        assert list(follower.image.values()) == list(loader.image.values())

    virtual_time.run(main())


def test_a_snapshot_loaded_on_the_way_is_published_as_a_difference() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        raft = quorum.node(1)
        loader, heard = MetadataLoader(raft, controller_config(), clock), Recorder()
        loader.add_publisher(heard)
        raft.register(loader)
        history = values(6, 60)
        quorum.append(history[:20])
        quorum.commit()
        ahead = MetadataLoader(quorum.node(2), controller_config(), clock)
        quorum.node(2).register(ahead)
        seen = loader.image
        quorum.append(history[20:])
        batch = quorum.pending[-1]
        ahead.handle_commit([batch])
        await quorum.node(2).create_snapshot(20, ahead.image.values())
        frozen = quorum.node(2).snapshots[-1]
        frozen.id = frozen.id._replace(end_offset=60)
        assert len(list(loader.handle_load_snapshot(frozen))) > 1
        assert heard.images[-2] == seen
        assert list(loader.image.values()) == list(ahead.image.values())
        assert loader.image.offset == 59

    virtual_time.run(main())


def snapshot_of(seed: int, count: int) -> FakeSnapshot:
    """Returns a checkpoint of `count` random records, large enough for several steps."""
    history = values(seed, count)
    delta = MetadataDelta(MetadataImage())
    for value in history:
        delta.replay_value(value)
    image = delta.apply(count - 1, 1)
    return FakeSnapshot(SnapshotId(count, 1), list(image.values()))


def test_the_image_stays_what_it_was_until_a_snapshot_is_loaded_whole() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        quorum.elect(1)
        quorum.append(values(8, 30))
        quorum.commit()
        heard = Recorder()
        loader.add_publisher(heard)
        before, snapshot = loader.image, snapshot_of(9, 400)
        waiting = asyncio.ensure_future(loader.wait_for_offset(399))
        steps = 0
        for _ in loader.handle_load_snapshot(snapshot):
            steps += 1
            await asyncio.sleep(0)
            assert (loader.image, heard.images[-1], waiting.done()) == (before, before, False)
        assert steps > 5
        await waiting
        assert list(loader.image.values()) == snapshot.values
        assert heard.images[-1] == loader.image

    virtual_time.run(main())


def test_a_load_that_is_given_up_or_fails_leaves_the_image_alone() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        quorum.append(values(8, 30))
        quorum.commit()
        before, snapshot = loader.image, snapshot_of(9, 400)
        given_up = loader.handle_load_snapshot(snapshot)
        for _ in range(5):
            next(given_up)
        given_up.close()
        assert loader.image == before
        snapshot.values[-1] = b"\xff\xff\xff"
        with pytest.raises(FatalError, match=snapshot.id.name):
            list(loader.handle_load_snapshot(snapshot))
        assert loader.image == before
        newer = snapshot_of(10, 300)
        list(loader.handle_load_snapshot(newer))
        assert list(loader.image.values()) == newer.values

    virtual_time.run(main())


def test_a_loader_that_is_closed_in_the_middle_of_a_load_applies_nothing_more() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        loader, heard = MetadataLoader(quorum.node(1), controller_config(), clock), Recorder()
        loader.add_publisher(heard)
        snapshot = snapshot_of(9, 400)
        steps = loader.handle_load_snapshot(snapshot)
        next(steps)
        await loader.close()
        assert len(list(steps)) == 0
        # Raft considers the checkpoint loaded: later commits must not meet an empty image.
        change = pb.PartitionChangeRecord(partition_id=0, topic_id=bytes(16))
        value = r.encode_record(pb.MetadataRecord(partition_change=change))
        loader.handle_commit([CommittedBatch(400, 400, 1, 0, [value])])
        loader.handle_leader_change(LeaderAndEpoch(1, 2))
        assert (loader.image, heard.images) == (MetadataImage(), [])

    virtual_time.run(main())


def test_snapshots_are_written_by_time_and_a_failed_one_is_tried_again() -> None:
    async def main() -> None:
        quorum = FakeQuorum()
        config = controller_config(metadata_log_max_snapshot_interval_ms="1000")
        raft = quorum.node(1)
        loader = MetadataLoader(raft, config, clock)
        raft.register(loader)
        raft.fail_snapshots = True
        history = values_of_one_level(7, 40)
        for value in history[:20]:
            quorum.append([value])
            await asyncio.sleep(0.1)
        assert (loader.snapshot_errors, loader.snapshots_written) == (1, 0)
        raft.fail_snapshots = False
        for value in history[20:]:
            quorum.append([value])
            await asyncio.sleep(0.1)
        assert loader.snapshots_written >= 1
        await loader.close()

    virtual_time.run(main())


def test_the_writer_of_a_snapshot_lets_go_of_the_interpreter_after_each_portion() -> None:
    written: list[bytes] = []
    pauses: list[int] = []
    values = [b"%d" % number for number in range(3 * WRITTEN_PER_PORTION + 7)]
    for value in in_portions(iter(values), lambda _: pauses.append(len(written))):
        written.append(value)
    assert written == values
    assert pauses == [WRITTEN_PER_PORTION * n for n in (1, 2, 3)]


def test_a_node_that_stops_does_not_wait_for_its_snapshot() -> None:
    async def main() -> None:
        quorum = FakeQuorum(auto_commit=False)
        config = controller_config(metadata_log_max_record_bytes_between_snapshots="1")
        raft = quorum.node(1)
        loader = MetadataLoader(raft, config, clock)
        raft.register(loader)
        topic_id = UUID(int=5)
        partition = PartitionRegistration((1, 2), (1, 2), 1)
        records = [r.topic_record("large", topic_id)]
        records += [r.partition_record(topic_id, i, partition) for i in range(WRITTEN_PER_PORTION)]
        quorum.append([r.encode_record(record) for record in records])
        quorum.commit()
        await loader.close()
        assert (raft.snapshots, loader.snapshots_written, loader.snapshot_errors) == ([], 0, 0)

    virtual_time.run(main())


def test_a_snapshot_is_written_when_the_replica_wants_one() -> None:
    async def main() -> None:
        quorum = FakeQuorum()
        loader = MetadataLoader(quorum.node(1), controller_config(), clock)
        quorum.node(1).register(loader)
        quorum.elect(1)
        loader.handle_snapshot_wanted()
        await asyncio.sleep(1)
        assert loader.snapshots_written == 0, "there is nothing to write yet"
        quorum.append(values(5, 20))
        await asyncio.sleep(1)
        assert loader.snapshots_written == 1
        loader.handle_snapshot_wanted()
        await asyncio.sleep(1)
        assert loader.snapshots_written == 2

    virtual_time.run(main())
