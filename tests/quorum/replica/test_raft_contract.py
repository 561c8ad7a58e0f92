"""The contract of RaftClient that the controller relies on, held by the fake and by the real
server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from quorum.replica.client import CommittedBatch, LeaderAndEpoch, RaftClient
from snapshot.reader import SnapshotReader
from tests.quorum.controller.cluster import active, eventually, real_controllers
from tests.quorum.controller.fake_raft import FakeQuorum
from tidemark.errors import NotControllerError

Leading = Callable[[], contextlib.AbstractAsyncContextManager[RaftClient]]


class Listener:
    """Records its calls, and the state at each leader change."""

    def __init__(self) -> None:
        self.batches: list[CommittedBatch] = []
        self.loaded: list[bytes] = []
        self.loaded_end = 0
        self.leaders: list[tuple[LeaderAndEpoch, int]] = []
        self.caught_up_at: list[int] = []

    @property
    def next_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.loaded_end

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        self.batches += batches

    def handle_load_snapshot(self, reader: SnapshotReader) -> None:
        self.loaded = [value for batch in reader.batches() for value in batch]
        self.loaded_end = reader.id.end_offset

    def handle_caught_up(self) -> None:
        self.caught_up_at.append(self.next_offset)

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self.leaders.append((leader, self.next_offset))


@pytest.fixture(params=["fake", "real"])
def leading(request: pytest.FixtureRequest, tmp_path: Path) -> Leading:
    """Returns a Raft client that leads."""

    @contextlib.asynccontextmanager
    async def fake() -> AsyncIterator[RaftClient]:
        quorum = FakeQuorum()
        raft = quorum.node(1)
        quorum.elect(1)
        yield raft

    @contextlib.asynccontextmanager
    async def real() -> AsyncIterator[RaftClient]:
        async with real_controllers(tmp_path, count=1) as nodes:
            yield (await active(nodes)).raft

    return fake if request.param == "fake" else real


def test_appends_are_atomic_and_have_the_offsets_they_were_given(leading: Leading) -> None:
    async def main() -> None:
        async with leading() as raft:
            listener = Listener()
            raft.register(listener)
            epoch = raft.leader_and_epoch.epoch
            first = raft.append(epoch, [b"\xa2\x01\x00"] * 3)
            assert raft.log_end_offset == first + 1
            second = raft.append(epoch, [b"\xa2\x01\x00"])
            assert second == first + 1
            await eventually(lambda: listener.next_offset > second, "both are committed")
            spans = [(b.base_offset, b.last_offset, b.epoch) for b in listener.batches]
            # Each append is within one batch, perhaps shared with the other.
            for begin, end in ((first - 2, first), (second, second)):
                assert any(b <= begin and end <= e and epoch == of for b, e, of in spans)
            assert spans == sorted(spans)
            assert all(len(b.values) == b.last_offset - b.base_offset + 1 for b in listener.batches)

    asyncio.run(main())


def test_another_epoch_may_not_append(leading: Leading) -> None:
    async def main() -> None:
        async with leading() as raft:
            end_offset = raft.log_end_offset
            with pytest.raises(NotControllerError):
                raft.append(raft.leader_and_epoch.epoch + 1, [b"x"])
            assert raft.log_end_offset == end_offset

    asyncio.run(main())


def test_a_listener_hears_of_the_leadership_after_all_that_was_committed(
    leading: Leading,
) -> None:
    async def main() -> None:
        async with leading() as raft:
            epoch = raft.leader_and_epoch.epoch
            early = Listener()
            raft.register(early)
            last = raft.append(epoch, [b"\xa2\x01\x00"] * 2)
            await eventually(lambda: early.next_offset > last, "it is committed")
            listener = Listener()
            raft.register(listener)
            await eventually(
                lambda: any(who.is_leader(raft.node_id) for who, _ in listener.leaders), "it leads"
            )
            leader, offset = listener.leaders[-1]
            assert leader == LeaderAndEpoch(raft.node_id, epoch)
            assert offset > last  # the controller may have written more

    asyncio.run(main())


def test_after_a_resignation_nothing_is_appended_in_the_old_epoch(leading: Leading) -> None:
    async def main() -> None:
        async with leading() as raft:
            epoch = raft.leader_and_epoch.epoch
            listener = Listener()
            raft.register(listener)
            raft.resign(epoch)
            await eventually(
                lambda: raft.leader_and_epoch != LeaderAndEpoch(raft.node_id, epoch), "resigned"
            )
            with pytest.raises(NotControllerError):
                raft.append(epoch, [b"x"])
            await eventually(
                lambda: (
                    bool(listener.leaders)
                    and listener.leaders[-1][0] != LeaderAndEpoch(raft.node_id, epoch)
                ),
                "listeners hear of it",
            )

    asyncio.run(main())


def test_a_snapshot_is_what_a_later_listener_begins_with(leading: Leading) -> None:
    async def main() -> None:
        async with leading() as raft:
            epoch = raft.leader_and_epoch.epoch
            early = Listener()
            raft.register(early)
            last = raft.append(epoch, [b"\xa2\x01\x00"] * 5)
            await eventually(lambda: early.next_offset > last, "it is committed")
            await raft.create_snapshot(last + 1, [b"all", b"of", b"it"])
            after = raft.append(epoch, [b"\xa2\x01\x00"])
            listener = Listener()
            raft.register(listener)
            await eventually(lambda: listener.next_offset > after, "it hears the rest")
            assert listener.loaded == [b"all", b"of", b"it"]
            assert listener.batches[0].base_offset > last

    asyncio.run(main())
