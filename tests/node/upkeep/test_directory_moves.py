"""Replicas move between the log directories of their brokers (KIP-113, KIP-858).

Brokers and the controller core are real, on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.moves.future_log import FutureLog
from node.upkeep.directory_mover import PREFERRED_MAX, SWAP_BYTES_MAX, Copied, DirectoryMover
from quorum.image.types import LOST_DIRECTORY
from tests.node.jbod import JbodCluster, JbodNode, jbod
from tidemark.config import altered_server
from tidemark.errors import (
    ApiError,
    ErrorCode,
    InvalidTopicError,
    KafkaStorageError,
    LogDirNotFoundError,
    ReplicaNotAvailableError,
)
from tidemark.types import TopicPartition

BY_FIRST = [(1, 2, 3), (2, 3, 1)]
PARTITIONS = range(2)


class Moving:
    """The cluster with a mover on each node; `gate` holds up the copying of pieces."""

    def __init__(self, cluster: JbodCluster) -> None:
        self.cluster = cluster
        self.gate = asyncio.Event()
        self.gate.set()
        self.movers: dict[int, DirectoryMover] = {}
        self.cleaners: dict[int, LogCleaner] = {}

    async def copy(self, work: Callable[[], Copied]) -> Copied:
        await asyncio.sleep(0.01)
        await self.gate.wait()
        return work()

    def attach(self, node: JbodNode) -> DirectoryMover:
        cleaner = LogCleaner(node.logs, node.config, now_ms=node.clock.wall_ms)
        mover = DirectoryMover(
            node.config,
            node.logs,
            node.partitions,
            cleaner,
            node.assignments,
            node.fatal.append,
            self.copy,
        )
        mover.start()
        node.tasks += mover._tasks
        self.movers[node.node_id], self.cleaners[node.node_id] = mover, cleaner
        return mover

    def alter(self, node_id: int, partition: int, directory: str) -> None:
        self.movers[node_id].alter(self.cluster.name(partition), f"node-{node_id}/{directory}")

    def elsewhere(self, node_id: int, partition: int) -> str:
        return "b" if self.cluster.nodes[node_id].home_of(partition) == "a" else "a"

    def future(self, node_id: int, partition: int) -> FutureLog | None:
        return self.cluster.nodes[node_id].logs.moves.get(self.cluster.name(partition))

    def is_known_in(self, node_id: int, partition: int, directory: str) -> bool:
        """Whether the log is in the directory and the controller has recorded it."""
        cluster = self.cluster
        wanted = cluster.directory_ids[node_id, directory]
        home = cluster.nodes[node_id].home_of(partition)
        known = cluster.of(partition).directory_of(node_id)
        return home == directory and known == wanted and self.future(node_id, partition) is None


def moving(
    test: Callable[[JbodCluster, Moving], Coroutine[Any, Any, None]], **settings: str
) -> None:
    """Three brokers, two partitions of RF 3, a few records in each."""

    async def main(cluster: JbodCluster) -> None:
        moves = Moving(cluster)
        await cluster.boot(1, 2, 3, **settings)
        for node in cluster.nodes.values():
            moves.attach(node)
        cluster.create(*BY_FIRST, min_insync_replicas="2", segment_bytes="500")
        await asyncio.gather(*(cluster.load(p, 20) for p in PARTITIONS))
        await cluster.until(
            lambda: all(
                moves.is_known_in(n, p, cluster.nodes[n].home_of(p) or "")
                for n in (1, 2, 3)
                for p in PARTITIONS
            )
        )
        await test(cluster, moves)

    jbod(main)


def test_replicas_move_to_and_fro_under_load_and_nothing_is_lost_or_twice() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        load = [asyncio.ensure_future(cluster.load(p, 150)) for p in PARTITIONS]
        for _ in range(4):
            targets = {(n, p): moves.elsewhere(n, p) for n in (1, 2, 3) for p in PARTITIONS}
            for (n, p), directory in targets.items():
                moves.alter(n, p, directory)
            for (n, p), directory in targets.items():
                await cluster.until(lambda: moves.is_known_in(n, p, directory))  # noqa: B023
        await asyncio.gather(*load)
        for p in PARTITIONS:
            assert cluster.refused[p] == []
            assert await cluster.consume(p) == cluster.acked[p]
            assert len(cluster.of(p).isr) == 3
            for n in (1, 2, 3):
                cluster.nodes[n].hosted(p).log.validate()

    moving(test)


def test_a_fetch_that_waits_during_a_swap_hears_of_the_next_record() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        leader = cluster.of(0).leader
        assert leader is not None
        end = cluster.nodes[leader].hosted(0).log.log_end_offset
        waiting = asyncio.ensure_future(cluster.fetch_from(leader, 0, end, max_wait_ms=60_000))
        directory = moves.elsewhere(leader, 0)
        moves.alter(leader, 0, directory)
        await cluster.until(lambda: moves.is_known_in(leader, 0, directory))
        await cluster.load(0, 1)
        assert (await waiting).payload

    moving(test)


def test_the_controller_knows_the_new_directory_before_the_log_is_there() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        home, directory = cluster.nodes[1].home_of(0), moves.elsewhere(1, 0)
        wanted = cluster.directory_ids[1, directory]
        assign = cluster.controller.handlers.pop("AssignReplicasToDirs")
        told = asyncio.Event()

        async def note(request: Any) -> Any:
            assert cluster.nodes[1].home_of(0) == home
            await told.wait()
            answer = await assign(request)
            assert cluster.of(0).directory_of(1) == wanted
            assert cluster.nodes[1].home_of(0) == home, "not before it has answered"
            return answer

        cluster.controller.handlers["AssignReplicasToDirs"] = note
        moves.alter(1, 0, directory)
        await asyncio.sleep(5)
        assert cluster.nodes[1].home_of(0) == home
        await cluster.load(0, 5)
        told.set()
        await cluster.until(lambda: moves.is_known_in(1, 0, directory))

    moving(test)


def test_a_cleaning_is_held_from_the_first_time_the_copy_has_caught_up() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        del cluster.controller.handlers["AssignReplicasToDirs"]
        states = moves.cleaners[1].states
        moves.alter(1, 0, moves.elsewhere(1, 0))
        await cluster.until(lambda: states.get(cluster.name(0)) is not None)
        moves.alter(1, 0, cluster.nodes[1].home_of(0) or "")
        await cluster.until(lambda: states.get(cluster.name(0)) is None)

    moving(test)


def test_naming_the_directory_it_is_in_ends_a_move_and_takes_a_promise_back() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        home, directory = cluster.nodes[1].home_of(0) or "", moves.elsewhere(1, 0)
        assign = cluster.controller.handlers["AssignReplicasToDirs"]
        noted = asyncio.Event()

        async def lose_the_answer(request: Any) -> Any:
            answer = await assign(request)
            noted.set()
            answer.Clear()
            answer.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
            return answer

        cluster.controller.handlers["AssignReplicasToDirs"] = lose_the_answer
        moves.alter(1, 0, directory)
        await noted.wait()
        assert cluster.of(0).directory_of(1) == cluster.directory_ids[1, directory]
        moves.alter(1, 0, home)
        assert moves.future(1, 0) is None
        cluster.controller.handlers["AssignReplicasToDirs"] = assign
        await cluster.until(lambda: moves.is_known_in(1, 0, home))
        await cluster.load(0, 5)

    moving(test)


def test_a_failed_destination_ends_only_the_move() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        home = cluster.nodes[1].home_of(0) or ""
        moves.gate.clear()
        moves.alter(1, 0, moves.elsewhere(1, 0))
        await asyncio.sleep(1)
        cluster.disk(1, moves.elsewhere(1, 0)).fail_writes()
        moves.gate.set()
        await cluster.until(lambda: moves.future(1, 0) is None)
        await cluster.load(0, 10)
        assert cluster.nodes[1].home_of(0) == home
        assert not cluster.nodes[1].hosted(0).offline
        assert 1 in cluster.of(0).isr

    moving(test)


@pytest.mark.parametrize("noted_first", [True, False])
def test_a_source_that_fails_after_the_promise_is_told_to_be_lost(noted_first: bool) -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        home = cluster.nodes[1].home_of(0) or ""
        assign = cluster.controller.handlers["AssignReplicasToDirs"]

        async def fail_the_source(request: Any) -> Any:
            cluster.controller.handlers["AssignReplicasToDirs"] = assign
            answer = await assign(request) if noted_first else None
            cluster.disk(1, home).fail_writes()
            await cluster.produce_to(1, 0, "x", timeout_ms=10)
            return answer or await assign(request)

        cluster.controller.handlers["AssignReplicasToDirs"] = fail_the_source
        assert cluster.of(0).leader == 1
        moves.alter(1, 0, moves.elsewhere(1, 0))
        await cluster.until(lambda: cluster.of(0).directory_of(1) == LOST_DIRECTORY)
        assert cluster.of(0).leader in (2, 3)
        assert moves.future(1, 0) is None
        await cluster.load(0, 5)
        await cluster.nothing_acknowledged_is_lost(0)

    moving(test)


def test_a_log_that_can_not_be_copied_stays_where_it_is() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        home = cluster.nodes[1].home_of(0) or ""
        log = cluster.nodes[1].hosted(0).log
        directory = cluster.disk(1, home).subdirectory(f"{cluster.name(0)}")
        assert isinstance(directory, MemoryDirectory)
        directory.flip_bit(log.segments[0].log_file, 80)
        moves.alter(1, 0, moves.elsewhere(1, 0))
        await cluster.until(lambda: moves.future(1, 0) is None)
        await asyncio.sleep(1)
        assert moves.is_known_in(1, 0, home)
        moves.alter(1, 1, moves.elsewhere(1, 1))
        await cluster.until(lambda: moves.future(1, 1) is None)

    moving(test)


def test_deleting_the_topic_ends_its_moves() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        moves.gate.clear()
        for p in PARTITIONS:
            moves.alter(1, p, moves.elsewhere(1, p))
        await asyncio.sleep(1)
        cluster.delete()
        assert cluster.nodes[1].logs.moves.all() == []
        moves.gate.set()
        await asyncio.sleep(1)
        cluster.nodes[1].logs.purge_deleted(1 << 62)
        for name in "ab":
            assert not [n for n in cluster.disk(1, name).list() if "flights" in n]

    moving(test)


@pytest.mark.parametrize("clean", [True, False])
def test_a_move_goes_on_after_a_restart(clean: bool) -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        home, directory = cluster.nodes[1].home_of(0) or "", moves.elsewhere(1, 0)
        moves.gate.clear()
        moves.alter(1, 0, directory)
        await asyncio.sleep(1)
        for _ in range(2):
            future = moves.future(1, 0)
            assert future is not None
            piece = future.next_piece()
            assert piece is not None
            future.take(piece, piece.run())
        await cluster.stop_node(1, clean=clean)
        await cluster.load(0, 10)
        await cluster.boot(1)
        assert cluster.nodes[1].home_of(0) == home
        moves.gate.set()
        moves.attach(cluster.nodes[1])
        await cluster.until(lambda: moves.is_known_in(1, 0, directory))
        await cluster.load(0, 10)
        await cluster.until(lambda: len(cluster.of(0).isr) == 3)
        assert await cluster.consume(0) == cluster.acked[0]

    moving(test)


def test_moves_keep_to_their_rate() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        log = cluster.nodes[1].hosted(0).log
        for _ in range(20):  # segments of 500 bytes, so that they are not left for the swap
            await cluster.load(0, 10)
        assert log.size_bytes < SWAP_BYTES_MAX
        rolled = log.size_bytes - log.active_segment.size_bytes
        begin, directory = asyncio.get_running_loop().time(), moves.elsewhere(1, 0)
        moves.alter(1, 0, directory)
        await cluster.until(lambda: moves.is_known_in(1, 0, directory))
        took_s = asyncio.get_running_loop().time() - begin
        assert took_s >= rolled / 2_000

    moving(test, replica_alter_log_dirs_io_max_bytes_per_second="2000")


def test_the_rate_changes_while_a_move_is_under_way() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        directory = moves.elsewhere(1, 0)
        moves.alter(1, 0, directory)
        await asyncio.sleep(30)
        assert moves.future(1, 0) is not None, "one byte a second"
        settings = {"replica.alter.log.dirs.io.max.bytes.per.second": "1000000"}
        moves.movers[1].reconfigure(altered_server(cluster.nodes[1].config, settings))
        await cluster.until(lambda: moves.is_known_in(1, 0, directory), seconds=5)

    moving(test, replica_alter_log_dirs_io_max_bytes_per_second="1")


def test_a_new_destination_takes_the_place_of_the_old_one() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        directory = moves.elsewhere(1, 0)
        moves.gate.clear()
        moves.alter(1, 0, directory)
        first = moves.future(1, 0)
        moves.alter(1, 0, directory)
        assert moves.future(1, 0) is first, "asking again changes nothing"
        moves.alter(1, 0, cluster.nodes[1].home_of(0) or "")
        moves.alter(1, 0, directory)
        assert moves.future(1, 0) is not first
        moves.gate.set()
        await cluster.until(lambda: moves.is_known_in(1, 0, directory))

    moving(test)


def test_a_move_that_ends_takes_back_only_its_own_promise() -> None:
    """The worker of the older move checks only after the newer one has made its own promise."""

    async def test(cluster: JbodCluster, moves: Moving) -> None:
        directory = moves.elsewhere(1, 0)
        assign = cluster.controller.handlers.pop("AssignReplicasToDirs")
        moves.alter(1, 0, directory)
        first = moves.future(1, 0)
        assert first is not None
        await cluster.until(lambda: first.is_promised)
        moves.alter(1, 0, cluster.nodes[1].home_of(0) or "")
        moves.alter(1, 0, directory)
        await asyncio.sleep(1)
        assert not first.is_promised
        cluster.controller.handlers["AssignReplicasToDirs"] = assign
        await cluster.until(lambda: moves.is_known_in(1, 0, directory))

    moving(test)


def test_what_can_not_be_moved_is_refused_with_kafka_s_errors() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        mover = moves.movers[1]

        def refused(topic: str, path: str) -> type[ApiError]:
            with pytest.raises(ApiError) as caught:
                mover.alter(TopicPartition(topic, 0), path)
            return type(caught.value)

        assert refused("flights", "node-1/c") is LogDirNotFoundError
        assert refused("t" * 249, "node-1/a") is InvalidTopicError
        assert refused("later", "node-1/b") is ReplicaNotAvailableError
        for number in range(PREFERRED_MAX):
            assert refused(f"never-{number}", "node-1/a") is ReplicaNotAvailableError
        assert len(cluster.nodes[1].logs.moves.preferred) == PREFERRED_MAX
        cluster.nodes[1].logs.directories[1].state.fail("test")
        assert refused("flights", "node-1/b") is KafkaStorageError
        await asyncio.sleep(1)
        offline = [p for p in PARTITIONS if cluster.nodes[1].home_of(p) is None]
        for p in offline:
            with pytest.raises(KafkaStorageError, match="is offline"):
                moves.alter(1, p, "a")

    moving(test)


def test_a_directory_without_the_room_is_refused_and_stays_online() -> None:
    async def test(cluster: JbodCluster, moves: Moving) -> None:
        directory = moves.elsewhere(1, 0)
        disk = cluster.disk(1, directory)
        size = cluster.nodes[1].hosted(0).log.size_bytes
        disk.set_capacity(disk.disk.used_bytes + size - 1)
        with pytest.raises(KafkaStorageError, match="bytes free"):
            moves.alter(1, 0, directory)
        assert moves.future(1, 0) is None
        assert len(cluster.nodes[1].logs.online_directories) == 2

    moving(test)


def test_a_replica_that_comes_later_is_made_where_it_was_asked_for() -> None:
    async def main(cluster: JbodCluster) -> None:
        moves = Moving(cluster)
        await cluster.boot(1)
        mover = moves.attach(cluster.nodes[1])
        for p in range(4):
            with pytest.raises(ReplicaNotAvailableError):
                mover.alter(cluster.name(p), "node-1/b")
        cluster.create((1,), (1,), (1,), (1,))
        await cluster.until(lambda: all(moves.is_known_in(1, p, "b") for p in range(4)))

    jbod(main)
