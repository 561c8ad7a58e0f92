"""The steps of a rebuild on the controller's own rules, ended after each of them and run again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from commitlog.disk.os_files import OsDirectory
from quorum.image import LeaderRecoveryState
from quorum.services.admin_answers import describe_topics
from tests.minio_fixture import ObjectStore
from tests.quorum.controller.scenario import Scenario, controller_config
from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tidemark.cli import tier_rebuild
from tidemark.cli.main import app
from tidemark.cli.session import Session
from tidemark.cli.tier_rebuild_steps import Rebuilder, RebuildError, Settings, obstacles
from tidemark.client import decoding as client_decoding
from tidemark.client.admin import _creatable
from tidemark.client.models import NewTopic, TopicDescription, TopicListing
from tidemark.errors import NetworkError, TidemarkError, error_for, raise_for
from tidemark.types import OffsetSpec, TopicIdPartition, TopicPartition, uuid_to_text
from tidemark.v1 import admin_pb2
from tiering.errors import RemoteStorageError
from tiering.metadata.codec import encode
from tiering.metadata.history import MetadataHistory
from tiering.metadata.memory import MemoryHistory
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tiering.reading.aux_state import RemoteHistory
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.listing import DirectoryListing
from tiering.store.recovered import read_segments
from tiering.store.s3 import S3RemoteStorageManager
from tiering.tasks.rebuild import TopicPlan, plan_partition

PARTITIONS = PARTITION.partition + 1


class Offset:
    def __init__(self, offset: int) -> None:
        self.offset = offset


class NewCluster:
    """A fresh cluster: the real controller, metadata records, and leaders restored by them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario = Scenario(config=controller_config(remote_log_storage_system_enable="true"))
        self.scenario.start_brokers(1, 2, 3)
        self.records: list[RemoteLogMetadata] = []
        self.restored: dict[TopicPartition, RemoteHistory | None] = {}
        self.elections = 0

    def history(self) -> MetadataHistory:
        history = MetadataHistory()
        for record in self.records:
            history.apply(encode(record))
        assert history.refused == []
        return history

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        return [
            TopicListing(topic.name, topic.topic_id, len(topic.partitions), 1)
            for topic in self.scenario.image.topics
        ]

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        request = admin_pb2.DescribeTopicsRequest(topic_names=names)
        answer = describe_topics(self.scenario.image, request)
        return {topic.name: client_decoding.topic(topic) for topic in answer.topics}

    def create_topics(self, topics: Sequence[NewTopic]) -> list[TopicListing]:
        request = admin_pb2.CreateTopicsRequest(topics=[_creatable(topic) for topic in topics])
        for topic in self.scenario.ask(request).topics:
            raise_for(topic.error_code, topic.error_message)
        return []

    def elect_leaders(
        self, election_type: str = "PREFERRED", partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Exception | None]:
        request = admin_pb2.ElectLeadersRequest(
            election_type=admin_pb2.ElectLeadersRequest.Type.Value(election_type)
        )
        for one in partitions or ():
            request.partitions.add(topic=one.topic, partition_index=one.partition)
        self.elections += 1
        found = {
            TopicPartition(r.topic, r.partition_index): error_for(r.error_code, r.error_message)
            if r.error_code
            else None
            for r in self.scenario.ask(request).results
        }
        for one, error in found.items():
            if error is None:
                self._restore(one)
        return found

    def _restore(self, partition: TopicPartition) -> None:
        """A leader restores itself from the records that are there at its election."""
        registration = self.scenario.partition(partition.topic, partition.partition)
        assert registration.leader_recovery_state is LeaderRecoveryState.RECOVERING
        history = MemoryHistory()
        for record in self.records:
            history.append(record)
        identity = TopicIdPartition(PARTITION.topic_id, *partition)

        async def ask() -> RemoteHistory | None:
            node = World(
                self.world.path / "new", storage=self.world.storage, history=history, broker_id=2
            )
            await node.manager.start()
            node.manager.on_leadership_change({}, {identity: node.log})
            try:
                return await node.manager.latest_history(identity)
            finally:
                node.log.close()

        found = asyncio.run(ask())
        assert found is None or registration.leader_epoch > found.epochs[-1][0]
        assert partition not in self.restored
        self.restored[partition] = found

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int | OffsetSpec], *, timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, Any]:
        answers = {}
        for partition, spec in wanted.items():
            if partition not in self.restored:
                raise NetworkError("no leader")
            found = self.restored[partition]
            first, end = (found.log_start_offset, found.next_offset) if found else (0, 0)
            answers[partition] = Offset(first if spec is OffsetSpec.EARLIEST else end)
        return answers


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four segments in the tier, of epochs 0 and 5."""

    async def scenario() -> World:
        made = World(tmp_path_factory.mktemp("old"), history=MemoryHistory())
        await made.manager.start()
        for epoch in (0, 5):
            made.lead(epoch)
            made.produce_segment()
            made.produce_segment()
        await made.manager.run_once(PARTITION)
        return made

    return asyncio.run(scenario())


@pytest.fixture
def plan(world: World) -> TopicPlan:
    objects = DirectoryListing(world.path / "tier").objects()
    found, remarks = read_segments(world.storage, objects, lambda _: True)
    assert len(found) == 4 and remarks == []
    numbers = [TopicIdPartition(PARTITION.topic_id, PARTITION.topic, n) for n in range(PARTITIONS)]
    return TopicPlan(
        PARTITION.topic,
        [plan_partition(one, found if one == PARTITION else []) for one in numbers],
    )


def rebuild(cluster: NewCluster, plan: TopicPlan, kill_at: int | None = None) -> list[str]:
    """Runs the steps; the process is killed before the step or record of this number."""
    steps: list[str] = []

    def step(name: str) -> None:
        if kill_at == len(steps):
            raise Killed(name)
        steps.append(name)

    def write(records: Sequence[RemoteLogMetadata]) -> None:
        for record in records:
            cluster.records.append(record)
            step("a record")

    rebuilder = Rebuilder(cluster, write, Settings(timeout_s=0), on_step=step, now_ms=lambda: 7)
    offsets = rebuilder.run(plan, cluster.history())
    assert offsets[PARTITION.partition] == (0, plan.partitions[-1].next_offset)
    return steps


def check(cluster: NewCluster, plan: TopicPlan, world: World) -> None:
    """Asserts the state of a whole rebuild."""
    (listed,) = cluster.list_topics()
    assert (listed.topic_id, listed.num_partitions) == (PARTITION.topic_id, PARTITIONS)
    assert cluster.restored.keys() == {TopicPartition(PARTITION.topic, n) for n in range(4)}
    found = cluster.restored[PARTITION.topic_partition]
    assert found is not None
    assert (found.log_start_offset, found.next_offset) == (
        0,
        world.log.local_log_start_offset or 80,
    )
    before = world.metadata.list_remote_log_segments(PARTITION)
    cache = cluster.history().partitions[PARTITION]
    assert [one.id for one in cache.segments()] == [one.id for one in before]
    assert [one.custom_metadata for one in cache.segments()] == [
        one.custom_metadata for one in before
    ]
    assert cluster.scenario.partition(PARTITION.topic, PARTITION.partition).leader_epoch == 6


def test_a_fresh_cluster_gets_the_topic_and_its_leaders_begin_where_the_tier_ends(
    world: World, plan: TopicPlan
) -> None:
    cluster = NewCluster(world)
    steps = rebuild(cluster, plan)
    assert steps.count("a record") == 8
    check(cluster, plan, world)
    assert rebuild(cluster, plan) == [f"{plan.name}: create", f"{plan.name}: wait"]
    assert (len(cluster.records), cluster.elections) == (8, 1)
    configs = dict(cluster.scenario.image.topic_configs(plan.name))
    assert (configs["retention.ms"], configs["remote.storage.enable"]) == ("-1", "true")


def test_a_rebuild_that_is_killed_anywhere_is_finished_by_the_next(
    world: World, plan: TopicPlan
) -> None:
    whole = len(rebuild(NewCluster(world), plan))
    for kill_at in range(whole):
        cluster = NewCluster(world)
        with pytest.raises(Killed):
            rebuild(cluster, plan, kill_at)
        rebuild(cluster, plan)
        check(cluster, plan, world)
        assert cluster.history().refused == []


def test_a_live_topic_gets_its_lost_records_and_no_election(world: World, plan: TopicPlan) -> None:
    cluster = NewCluster(world)
    rebuild(cluster, plan)
    cluster.records = cluster.records[:3]  # the second segment is begun, the later ones are lost
    rebuild(cluster, plan)
    assert len(cluster.records) == 8 and cluster.elections == 1


def test_a_segment_whose_first_record_alone_was_lost_is_recorded_again(
    world: World, plan: TopicPlan
) -> None:
    cluster = NewCluster(world)
    rebuild(cluster, plan)
    del cluster.records[2]  # the begin of the second segment: nodes refuse its end
    history = MetadataHistory()
    for record in cluster.records:
        history.apply(encode(record))
    assert len(history.refused) == 1
    written: list[RemoteLogMetadata] = []
    Rebuilder(cluster, written.extend, Settings(timeout_s=0)).run(plan, history)
    for record in written:
        history.apply(encode(record))
    assert len(written) == 2 and len(history.refused) == 1
    states = [one.state for one in history.partitions[PARTITION].segments()]
    assert states == [RemoteLogSegmentState.COPY_SEGMENT_FINISHED] * 4


def test_a_deleted_segment_is_not_recorded_again(world: World, plan: TopicPlan) -> None:
    from tests.tiering.builders import DELETED, DELETING

    cluster = NewCluster(world)
    rebuild(cluster, plan)
    one = plan.partitions[-1].chosen[0]
    cluster.records += [one.update(DELETING, 1, 1), one.update(DELETED, 2, 1)]
    rebuild(cluster, plan)
    assert len(cluster.records) == 10


def test_replicas_that_had_a_leader_are_never_elected_uncleanly(
    world: World, plan: TopicPlan
) -> None:
    cluster = NewCluster(world)
    rebuild(cluster, plan)
    cluster.scenario.keep_alive(18_000)  # all brokers are away
    assert cluster.scenario.partition(PARTITION.topic, 3).leader is None
    with pytest.raises(RebuildError, match=r"4 of 4 .* no leader, of replicas"):
        rebuild(cluster, plan)
    assert cluster.elections == 1


def test_what_is_waited_for_is_told_once_and_all_partitions_share_one_timeout(
    world: World, plan: TopicPlan
) -> None:
    cluster = NewCluster(world)
    rebuild(cluster, plan)
    del cluster.restored[TopicPartition(PARTITION.topic, 0)]  # its leader restores itself
    plan.partitions[1].next_offset = 7  # its leader ends at 0
    now_s, told = [0.0], list[str]()

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    rebuilder = Rebuilder(
        cluster,
        cluster.records.extend,
        Settings(timeout_s=30),
        on_step=told.append,
        sleep=sleep,
        clock=lambda: now_s[0],
    )
    with pytest.raises(RebuildError, match="2 of 4 partitions are not served after 30 s"):
        rebuilder.run(plan, cluster.history())
    assert 30 <= now_s[0] < 31
    first, second = (one for one in told if "wait: " in one)
    assert "-0: wait: leader" in first and "restores itself" in first
    assert "-1: wait: leader" in second and "ends at 0, and the tier at 7; 30 s" in second


def test_another_topic_and_a_deleted_one_are_in_the_way(world: World, plan: TopicPlan) -> None:
    cluster = NewCluster(world)
    cluster.scenario.create(plan.name, (1,))
    topics = cluster.list_topics()
    (told,) = obstacles(plan, topics, cluster.history())
    assert "another topic" in told
    with pytest.raises(TidemarkError):  # the controller refuses it as well
        rebuild(cluster, plan)
    assert cluster.records == [] and cluster.elections == 0

    renamed = TopicListing("renamed", PARTITION.topic_id, 4, 1)
    assert "is in use" in next(obstacles(plan, [renamed], cluster.history()))
    small = TopicListing(plan.name, PARTITION.topic_id, 2, 1)
    assert "add partitions first" in next(obstacles(plan, [small], cluster.history()))
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    cluster.records = [RemotePartitionDeleteMetadata(PARTITION, marked, 1, 1)]
    assert "was deleted" in next(obstacles(plan, [], cluster.history()))
    assert (
        next(obstacles(plan, [TopicListing("x", UUID(int=5), 1, 1)], MetadataHistory()), None)
        is None
    )


def test_a_second_copy_and_another_lineage_do_not_hold_a_leader_back(
    world: World, plan: TopicPlan
) -> None:
    """A leader is not restored while the store has segments that no record names."""
    last = plan.partitions[-1]
    shortened = last.chosen.pop()
    cluster = NewCluster(world)
    with pytest.raises(RemoteStorageError, match="tier rebuild"):
        rebuild(cluster, plan)
    last.extra.append((shortened, "another segment has the same offsets"))
    cluster = NewCluster(world)
    rebuild(cluster, plan)
    check(cluster, plan, world)


@pytest.fixture
def command(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command on a copy of the tier and a fresh cluster."""
    shutil.copytree(world.path / "tier", tmp_path / "tier")
    return Command(tmp_path, monkeypatch)


def storage_of(s3: dict[str, str]) -> S3RemoteStorageManager:
    storage = S3RemoteStorageManager()
    storage.configure(s3)
    return storage


class Command:
    def __init__(
        self, path: Path, patch: pytest.MonkeyPatch, s3: dict[str, str] | None = None
    ) -> None:
        self.tier = path / "tier"
        storage: Any = DirectoryRemoteStorageManager(OsDirectory(self.tier))
        settings = {"dir": str(self.tier)}
        if s3 is not None:
            storage, settings = storage_of(s3), s3
        self.cluster = NewCluster(World(path, storage=storage, history=MemoryHistory()))
        self.config = path / "server.properties"
        self.config.write_text(
            "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=1@127.0.0.1:1\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={path}/unused\n"
            f"remote.log.storage.manager.class.name={'directory' if s3 is None else 's3'}\n"
            + "".join(f"rsm.config.{key}={value}\n" for key, value in settings.items())
        )
        patch.setattr(Session, "admin", lambda _: nullcontext(self.cluster))
        patch.setattr(tier_rebuild, "_history", lambda *_: self.cluster.history())
        patch.setattr(tier_rebuild, "_writer", lambda *_: self.cluster.records.extend)

    def __call__(self, *arguments: str, exit_code: int = 0) -> Any:
        options = ["-c", str(self.config), "--json", "--timeout", "1"]
        result = CliRunner().invoke(app, ["tier", "rebuild", *options, *arguments])
        assert result.exit_code == exit_code, (result.output, result.exception)
        return json.loads(result.stdout) if result.stdout else None

    def lose(self, start: int) -> None:
        (log,) = self.tier.rglob(f"{start:020d}-*.log")
        log.unlink()
        log.with_suffix(".sidecar").unlink()


def test_a_hole_stops_the_command_until_its_records_are_given_up(command: Command) -> None:
    command.lose(20)
    (topic,) = command(exit_code=1)["topics"]
    hole = {"start": 20, "end": 40, "reason": "no segment has these offsets"}
    assert topic["state"] == "planned" and topic["partitions"][3]["holes"] == [hole]
    assert command.cluster.list_topics() == [] and command.cluster.records == []
    (topic,) = command("--accept-holes", exit_code=0)["topics"]
    assert topic["state"] == "rebuilt" and topic["partitions"][3]["holes"] == [hole]
    (first, end) = (topic["partitions"][3][key] for key in ("first_offset", "next_offset"))
    assert (first, end) == (40, 80)
    assert len(command.cluster.records) == 6  # the segment below the hole, too


def test_the_number_of_partitions_and_the_settings_of_a_new_topic_are_as_given(
    command: Command,
) -> None:
    name = PARTITION.topic
    command("--partitions", f"{name}=3", exit_code=1)
    command("--partitions", name, exit_code=1)
    command("--partitions", f"{name}=x", exit_code=1)
    command("--topic-config", "remote.storage.enable=false", exit_code=1)
    assert command.cluster.list_topics() == []
    given = ["retention.ms=1000", f"{name}:retention.ms=2000", "other:retention.bytes=5"]
    options = [text for one in given for text in ("--topic-config", one)]
    (topic,) = command("--partitions", f"{name}=6", *options)["topics"]
    assert [one["next_offset"] for one in topic["partitions"]] == [0, 0, 0, 80, 0, 0]
    (listed,) = command.cluster.list_topics()
    assert listed.num_partitions == 6
    configs = dict(command.cluster.scenario.image.topic_configs(name))
    assert (configs["retention.ms"], configs["retention.bytes"]) == ("2000", "-1")


@pytest.mark.minio
def test_two_lineages_in_a_real_object_store_become_the_log_of_the_newer_one(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election cut the log at 40, after its first leader had copied up to 80."""
    s3 = object_store.rsm_config("rebuilt/")

    async def fill() -> tuple[bytes, list[UUID]]:
        made = World(tmp_path / "old", history=MemoryHistory(), storage=storage_of(s3))
        await made.manager.start()
        made.lead(0)
        for _ in range(4):
            made.produce_segment()
        await made.once()
        lost = [one.id for one in made.metadata.list_remote_log_segments(PARTITION)][2:]
        made.follow()
        made.log.truncate_to(40, made.now_ms)
        made.lead(1)
        made.produce_segment(size=50)
        made.produce_segment(batches=1, size=50)
        made.produce(1)
        await made.once()
        written = made.local_bytes(0, 65)
        await made.manager.stop()
        return written, lost

    async def read(records: list[RemoteLogMetadata], epochs: list[tuple[int, int]]) -> bytes:
        history = MemoryHistory()
        for record in records:
            history.append(record)
        node = World(tmp_path / "read", history=history, storage=storage_of(s3), broker_id=3)
        await node.manager.start()
        node.follow()
        node.log.truncate_fully_and_start_at(65, node.now_ms)
        node.log.epochs.replace(EpochEntry(*one) for one in epochs)
        node.log._log_start_offset = 0
        records_read = await node.read_all(0, 65)
        await node.manager.stop()
        return records_read

    written, lost = asyncio.run(fill())
    command = Command(tmp_path, monkeypatch, s3)
    answer = command()
    last = answer["topics"][0]["partitions"][PARTITION.partition]
    assert (last["first_offset"], last["next_offset"], last["holes"]) == (0, 65, [])
    extra = {one["object"].rpartition("/")[2] for one in answer["recorded_for_retention"]}
    assert extra == {uuid_to_text(one) for one in lost}
    found = command.cluster.restored[PARTITION.topic_partition]
    assert found is not None and found.next_offset == 65
    assert list(found.epochs) == [(0, 0), (1, 40)]
    assert asyncio.run(read(command.cluster.records, list(found.epochs))) == written
