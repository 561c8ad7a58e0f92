"""Appends before they are written: one turn of the event loop makes one batch, promised offsets
hold, and waiting appends are lost with the leadership.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.effects import RequestReceived, Resign
from quorum.raft.voters import ReplicaKey
from quorum.replica.appends import MAX_BATCH_BYTES, SHARED_RECORDS_MAX, Appends
from snapshot.framing import decode_batches
from tests.quorum.replica.servers import CLUSTER_ID, RaftNodes
from tidemark.errors import ErrorCode, NotControllerError, RecordListTooLargeError

# A busy machine does not make a voter look silent: a change of voters needs a healthy majority.
PATIENT = {"controller.quorum.fetch.timeout.ms": "20000"}


def taken(appends: Appends) -> list[tuple[int, int, list[bytes] | None]]:
    """Returns (base offset, epoch, values) of each batch."""
    found = decode_batches(b"".join(appends.take()))
    return [(batch.base_offset, batch.epoch, batch.values) for batch in found]


def test_appends_share_a_batch_and_get_offsets_in_turn():
    appends = Appends()
    assert appends.add([b"a", b"b"], 3, 10, 1000) == 11
    assert appends.add([b"c"], 3, 10, 1001) == 12
    assert appends.count == 3
    assert taken(appends) == [(10, 3, [b"a", b"b", b"c"])]
    assert appends.count == 0
    assert taken(appends) == []


def test_what_would_make_a_batch_too_large_begins_the_next():
    appends = Appends()
    large = b"x" * (MAX_BATCH_BYTES // 2)
    assert appends.add([large], 1, 0, 1000) == 0
    assert appends.add([large], 1, 0, 1000) == 1
    assert appends.add([b"small"], 1, 0, 1000) == 2
    batches = appends.take()
    assert max(map(len, batches)) <= MAX_BATCH_BYTES
    found = decode_batches(b"".join(batches))
    assert [batch.base_offset for batch in found] == [0, 1]


def test_a_shared_batch_stays_small_and_a_large_append_has_its_own():
    appends = Appends()
    for count in (SHARED_RECORDS_MAX - 1, 1, 1, 3 * SHARED_RECORDS_MAX, 2):
        appends.add([b"x"] * count, 1, 0, 1000)
    sizes = [len(values or ()) for _, _, values in taken(appends)]
    assert sizes == [SHARED_RECORDS_MAX, 1, 3 * SHARED_RECORDS_MAX, 2]


def test_the_largest_batch_is_taken_and_one_byte_more_is_refused_without_a_trace():
    room = MAX_BATCH_BYTES - len(one_batch(b"")) - 8  # two more lengths of four bytes
    while len(one_batch(b"x" * room)) < MAX_BATCH_BYTES:
        room += 1
    appends = Appends()
    appends.add([b"before"], 1, 0, 1000)
    with pytest.raises(RecordListTooLargeError):
        appends.add([b"x" * (room + 1)], 1, 0, 1000)
    assert appends.count == 1
    assert appends.add([b"x" * room], 1, 0, 1000) == 1
    assert [len(batch) == MAX_BATCH_BYTES for batch in appends.take()] == [False, True]


def one_batch(value: bytes) -> bytes:
    appends = Appends()
    appends.add([value], 1, 0, 1000)
    return appends.take()[0]


def test_another_epoch_begins_with_nothing():
    appends = Appends()
    appends.add([b"of the old epoch"], 1, 10, 1000)
    assert appends.add([b"of the new"], 2, 11, 1000) == 11
    assert taken(appends) == [(11, 2, [b"of the new"])]


def test_all_writers_of_one_turn_share_a_batch():
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        batches = []
        nodes.recorders[leader.node_id].handle_commit = batches.extend
        begin = leader.log_end_offset
        offsets = [leader.append(leader.epoch, [b"%d" % n, b"more"]) for n in range(20)]
        assert offsets == [begin + 2 * n + 1 for n in range(20)]
        assert leader.log_end_offset == begin + 40
        await nodes.until(lambda: bool(batches), "a commit")
        assert [len(batch.values) for batch in batches] == [40]
        await nodes.stop_all()

    asyncio.run(scenario())


def test_what_waits_is_lost_with_the_leadership():
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        epoch = leader.epoch
        leader.append(epoch, [b"kept"])
        await nodes.committed([b"kept"])
        written: list[bytes] = []
        leader._log.append_batch = lambda batch, _: written.append(batch)
        leader._post(Resign(epoch))  # handled before the append of the same turn
        leader.append(epoch, [b"lost"])
        await nodes.until(lambda: leader.epoch > epoch and nodes.leader() is not None, "the next")
        successor = nodes.leader()
        with pytest.raises(NotControllerError):
            leader.append(epoch, [b"too late"])
        assert successor.epoch > epoch
        successor.append(successor.epoch, [b"next"])
        await nodes.committed([b"kept", b"next"])
        assert written == []  # a resigned leader never writes in its epoch again
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_change_of_the_voters_goes_behind_what_was_appended_before():
    async def scenario():
        nodes = RaftNodes(initial=[1, 2, 3], settings=PATIENT)
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        removed = next(n for n in (1, 2, 3) if n != leader.node_id)
        leader.append(leader.epoch, [b"first"])
        await nodes.committed([b"first"])  # on all: the voters that stay are healthy
        end_offset = leader.log_end_offset
        key = ReplicaKey(removed, UUID(int=1000 + removed))
        leader._post(RequestReceived(-5, m.RemoveVoterRequest(CLUSTER_ID, key)))
        assert leader.append(leader.epoch, [b"promised"]) == end_offset
        await nodes.committed([b"first", b"promised"])
        remaining = {voter.replica_id for voter in leader.describe().voters}
        assert remaining == {1, 2, 3} - {removed}
        recorder = nodes.recorders[leader.node_id]
        assert recorder.next_offset == end_offset + 1
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_change_of_the_voters_is_answered_when_its_own_record_is_committed():
    async def scenario():
        one_batch = {"controller.quorum.fetch.max.bytes": "1024"}
        nodes = RaftNodes(initial=[1, 2, 3], settings=PATIENT | one_batch)
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        removed = next(n for n in (1, 2, 3) if n != leader.node_id)
        leader.append(leader.epoch, [b"first"])
        await nodes.committed([b"first"])  # on all: the voters that stay are healthy
        asked = asyncio.ensure_future(
            leader.handle(m.RemoveVoterRequest(CLUSTER_ID, nodes.key(removed), 20_000))
        )
        await asyncio.sleep(0)  # the request is queued before the append
        large = bytes(2000)
        leader.append(leader.epoch, [large])  # in a fetch of its own: committed earlier
        committed = []
        asked.add_done_callback(lambda _: committed.append(leader.high_watermark))
        assert (await asked).header.error == ErrorCode.NONE
        assert committed[0] > leader._log.voters_offset
        await nodes.stop_all()

    asyncio.run(scenario())
