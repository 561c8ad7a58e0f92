"""Followers and replicas without a leader: whom they ask, and what they believe of an answer."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LogAppended,
    LogFlushed,
    RecordsRefused,
    RequestFailed,
    ResponseReceived,
    Shutdown,
    SnapshotInstalled,
    SnapshotRejected,
    Tick,
)
from quorum.raft.log_view import (
    NO_BOUNDS,
    Diverging,
    KnownBounds,
    Valid,
    validate_offset_and_epoch,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Follower, SnapshotDownload, Unattached
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from snapshot import SnapshotId
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, replica
from tests.quorum.raft.test_wrong_answers import FollowerOf3, diverging, header
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint, Listener

FOLLOWS_3 = ElectionState(5, 3)


def made(log=None, state=FOLLOWS_3, *, bounds=NO_BOUNDS, **config):
    values = {"voters": VoterSet.static(ENDPOINTS), "endpoint": ENDPOINTS[1], **config}
    key = values.pop("key", KEYS[1])
    found = Replica(
        ReplicaConfig("c", key, **values),
        log or FakeLog([(1, 0), (4, 20)], 30),
        state,
        random.Random(1),
        bounds=bounds,
    )
    return found, found.start(0)


# --- the tail of the log --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("committed", "found_again"), [(None, False), (31, False), (30, True), (7, True)]
)
def test_a_lost_tail_is_found_when_all_that_the_leader_committed_is_durable(
    committed, found_again
) -> None:
    found, effects = made(bounds=KnownBounds(40, 5))
    assert found.state.lost_tail
    response = m.FetchResponse(header(), committed)
    effects = found.step(ResponseReceived(effects.sends[0].correlation_id, response), 1)
    assert found.state.lost_tail is not found_again
    assert (effects.tail_found, effects.save_bounds) == (found_again, found_again)


# --- timeouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ElectionState(5), ElectionState(5, 3)])
def test_a_node_that_shuts_down_stands_for_no_election(state) -> None:
    found, _ = made(state=state)
    role = type(found.role)
    found.step(Shutdown(), 1)
    found.step(Tick(), 60_000)
    assert isinstance(found.role, role)


def test_an_observer_follows_a_silent_leader_for_ever() -> None:
    found, _ = made(voters=VoterSet.static({n: ENDPOINTS[n] for n in (2, 3)}))
    found.step(Tick(), 60_000)
    assert isinstance(found.role, Follower)


# --- the fetch offset acknowledges ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "voters", "syncs"),
    [
        (ENDPOINTS[1], (1, 2, 3), True),
        (None, (1, 2, 3), True),
        (ENDPOINTS[1], (2, 3), True),
        (None, (2, 3), False),
    ],
    ids=["a voter", "a voter without address", "may become a voter", "a broker"],
)
def test_who_may_be_a_voter_fetches_only_what_it_has_on_disk(endpoint, voters, syncs) -> None:
    found, effects = made(
        endpoint=endpoint, voters=VoterSet.static({n: ENDPOINTS[n] for n in voters})
    )
    response = m.FetchResponse(header(), 30, records=b"records")
    found.step(ResponseReceived(effects.sends[0].correlation_id, response), 1)
    found.state.log.end_offset = 33
    effects = found.step(LogAppended(), 2)
    assert (effects.flush, bool(effects.sends)) == (syncs, not syncs)
    if syncs:
        timer_ms = 2002 if 1 in voters else None
        assert found.next_deadline_ms() == timer_ms, "the fetch timeout"
        assert not found.step(LogFlushed(32), 3).sends
        effects = found.step(LogFlushed(33), 4)
    (send,) = effects.sends
    assert (send.node_id, send.request.fetch_offset) == (3, 33)


def test_a_follower_tells_the_high_watermark_that_its_leader_confirmed() -> None:
    follower = FollowerOf3(FakeLog([(4, 0)], 30, 20, [SnapshotId(20, 4)]))
    assert follower.replica.high_watermark == 20
    assert follower.sends[0].request.high_watermark is None
    follower.commit(25)
    assert follower.sends[0].request.high_watermark == 25


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "followed_at"),
    [(Endpoint("h", 99), Endpoint("h", 99)), (ENDPOINTS[3], ENDPOINTS[3]), (None, ENDPOINTS[3])],
    ids=["it moved", "the same", "not told"],
)
def test_a_leader_that_moved_is_fetched_from_at_its_new_address(reported, followed_at) -> None:
    follower = FollowerOf3()
    follower.answer(m.FetchResponse(m.Header(ErrorCode.NONE, 3, 5, reported), 10))
    assert follower.replica.role.leader_endpoint == followed_at
    assert follower.sends[0].endpoint == followed_at


def test_an_answer_about_another_end_of_the_log_is_dropped() -> None:
    follower = FollowerOf3()
    follower.log.end_offset = 35
    effects = follower.answer(m.FetchResponse(header(), 10, records=b"records"))
    assert effects.append_records == b""
    assert not follower.replica.role.has_fetched


def test_a_server_that_knows_no_leader_rests_for_longer_than_the_leader() -> None:
    found, effects = made(state=ElectionState(5))
    (send,) = effects.sends
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    nothing = m.FetchResponse(m.Header(error, None, 5))
    effects = found.step(ResponseReceived(send.correlation_id, nothing), 1)
    assert [s.node_id == send.node_id for s in effects.sends] == [False]
    assert found.state.requests.is_backing_off(send.node_id, 100)
    assert not found.state.requests.is_backing_off(send.node_id, 101)

    follower = FollowerOf3()
    follower.answer(m.FetchResponse(header(error)))
    assert follower.replica.state.requests.is_backing_off(3, follower.now_ms + 19)
    assert not follower.replica.state.requests.is_backing_off(3, follower.now_ms + 20)


def test_truncation_down_to_the_high_watermark_keeps_what_the_leader_committed() -> None:
    follower = FollowerOf3()
    follower.commit(20)
    effects = follower.answer(diverging(1, 20))
    assert effects.truncate_to == 20
    follower.log.entries, follower.log.end_offset = [(1, 0)], 20
    follower.step(LogAppended())
    role = follower.replica.role
    assert (role.leader_high_watermark, follower.replica.high_watermark) == (20, 20)


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (SnapshotId(19, 4), False),
        (SnapshotId(20, 4), False),
        (SnapshotId(24, 4), False),
        (SnapshotId(25, 4), True),
        (SnapshotId(40, 5), True),
    ],
)
def test_only_a_checkpoint_that_is_newer_and_not_below_the_high_watermark_is_fetched(
    sent, begins
) -> None:
    follower = FollowerOf3(FakeLog([(4, 0)], 30, 20, [SnapshotId(20, 4)]))
    follower.commit(25)
    effects = follower.answer(m.FetchResponse(header(), 25, snapshot_id=sent))
    assert (follower.replica.role.download is not None) == begins
    assert (effects.remote_fault is None) == begins


def test_the_checkpoint_that_is_here_is_not_fetched_again() -> None:
    here = SnapshotId(20, 4)
    follower = FollowerOf3(FakeLog([(4, 0)], 30, 20, [here]))
    effects = follower.answer(m.FetchResponse(header(), 25, snapshot_id=here))
    assert follower.replica.role.download is None
    assert effects.remote_fault is not None


# --- reports of checkpoints -----------------------------------------------------------------------

HERE = SnapshotId(30, 4)


@pytest.mark.parametrize("event", [SnapshotInstalled(HERE), SnapshotRejected(HERE)])
@pytest.mark.parametrize(
    "download",
    [None, SnapshotDownload(HERE), SnapshotDownload(SnapshotId(40, 4), 0, True)],
    ids=["none", "still fetching", "a newer one"],
)
def test_a_report_ends_no_download_but_its_own(download, event) -> None:
    follower = FollowerOf3()
    role = follower.replica.role
    role.download, role.faults = download, 2
    follower.step(event)
    assert (role.download, role.faults) == (download, 2)


def test_a_checkpoint_that_is_installed_ends_the_pauses() -> None:
    follower = FollowerOf3()
    role = follower.replica.role
    role.download, role.faults = SnapshotDownload(HERE, 9, installing=True), 2
    follower.step(SnapshotInstalled(HERE))
    assert (role.download, role.faults) == (None, 0)
    assert follower.replica.high_watermark == 30


@pytest.mark.parametrize("event", [SnapshotInstalled(HERE), SnapshotRejected(HERE)])
def test_a_report_that_comes_after_the_leader_is_gone_ends_nothing(event) -> None:
    found, _ = made(state=ElectionState(5))
    found.step(event, 1)
    assert isinstance(found.role, Unattached)


# --- who is asked for the leader ------------------------------------------------------------------


def asked_for_the_leader(**config) -> set[Endpoint]:
    log = config.pop("log", None)
    found, effects = made(log, ElectionState(5), **config)
    asked, now_ms = set(), 0
    while now_ms < 900:
        for send in effects.sends:
            asked.add(send.endpoint)
            found.step(RequestFailed(send.correlation_id), now_ms)
        now_ms += 20
        effects = found.step(Tick(), now_ms)
    return asked


def dynamic_log() -> FakeLog:
    log = FakeLog([(1, 0), (4, 20)], 30)
    log.voters = VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in (1, 2, 3))
    log.voters_offset, log.kraft_version = 0, 1
    return log


def test_voters_of_the_log_are_asked_beside_the_bootstrap_servers_and_static_ones_in_their_place():
    other = Endpoint("b", 1)
    bootstrap = (other, ENDPOINTS[1], ENDPOINTS[2])
    two, three = ENDPOINTS[2], ENDPOINTS[3]
    assert asked_for_the_leader() <= {two, three}
    assert asked_for_the_leader(bootstrap=bootstrap) <= {other, two}
    assert three in asked_for_the_leader(log=dynamic_log(), bootstrap=bootstrap)
    assert ENDPOINTS[1] not in asked_for_the_leader(log=dynamic_log(), bootstrap=bootstrap)


# --- who a voter is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ReplicaKey(1, UUID(int=1)), ReplicaKey(1, UUID(int=1)), True),
        (ReplicaKey(1, UUID(int=1)), ReplicaKey(1, UUID(int=2)), False),
        (ReplicaKey(1, UUID(int=1)), ReplicaKey(2, UUID(int=1)), False),
        (ReplicaKey(1, None), ReplicaKey(1, UUID(int=2)), True),
        (ReplicaKey(1, UUID(int=2)), ReplicaKey(1, None), True),
        (ReplicaKey(1, None), ReplicaKey(2, None), False),
    ],
)
def test_a_voter_is_its_id_and_its_directory_if_both_are_known(one, other, same) -> None:
    assert one.matches(other) is same


def test_a_node_is_reached_at_its_voters_address_or_at_a_newer_one() -> None:
    voters = VoterSet.static(ENDPOINTS)
    assert voters.reachable_endpoint(2, None) == ENDPOINTS[2]
    assert voters.reachable_endpoint(2, ENDPOINTS[2]) == ENDPOINTS[2]
    assert voters.reachable_endpoint(2, Endpoint("x", 1)) == Endpoint("x", 1)
    assert voters.reachable_endpoint(9, None) is None
    assert not VoterSet.static({1: ENDPOINTS[1]}).is_only_voter(KEYS[2])
    assert replica(voters=(2,)).state.is_voter is False


# --- what else counts -----------------------------------------------------------------------------


def test_only_one_server_is_asked_for_the_leader_at_a_time() -> None:
    found, effects = made(state=ElectionState(5))
    assert len(effects.sends) == 1
    assert found.step(Tick(), 1).sends == []


def test_a_tail_that_was_not_lost_is_not_found() -> None:
    follower = FollowerOf3()
    effects = follower.answer(m.FetchResponse(header(), 25))
    assert not effects.tail_found


def test_a_lost_tail_is_not_found_while_the_log_changes() -> None:
    found, _ = made(bounds=KnownBounds(40, 5))
    found.role.leader_high_watermark, found.state.awaiting_log = 7, True
    assert not found.step(Tick(), 1).tail_found
    assert found.state.lost_tail
    assert found.step(LogAppended(), 2).tail_found


@pytest.mark.parametrize(("sent", "begins"), [(20, False), (24, False), (25, True), (28, True)])
def test_a_checkpoint_below_what_an_earlier_life_knew_as_committed_is_not_fetched(
    sent, begins
) -> None:
    found, effects = made(bounds=KnownBounds(30, 25))
    assert found.high_watermark is None
    response = m.FetchResponse(header(), 25, snapshot_id=SnapshotId(sent, 4))
    effects = found.step(ResponseReceived(effects.sends[0].correlation_id, response), 1)
    assert (found.role.download is not None) == begins
    assert (effects.remote_fault is None) == begins


def test_a_checkpoint_beyond_a_log_that_lost_its_tail_is_fetched() -> None:
    """The lost records were committed; the log that is left ends below."""
    found, effects = made(bounds=KnownBounds(40, 38))
    response = m.FetchResponse(header(), 50, snapshot_id=SnapshotId(35, 4))
    found.step(ResponseReceived(effects.sends[0].correlation_id, response), 1)
    assert found.role.download == SnapshotDownload(SnapshotId(35, 4))


def test_a_leader_is_followed_at_the_listener_of_the_own_network() -> None:
    outer = Endpoint("outer", 3)
    listeners = (Listener("OUTER", *outer), Listener("CONTROLLER", *ENDPOINTS[3]))
    log = FakeLog([(1, 0), (4, 20)], 30)
    log.voters = VoterSet(
        [
            Voter(KEYS[1], ENDPOINTS[1]),
            Voter(KEYS[2], ENDPOINTS[2]),
            Voter(KEYS[3], ENDPOINTS[3], listeners),
        ]
    )
    log.voters_offset, log.kraft_version = 0, 1
    follower = FollowerOf3(log)
    follower.answer(m.FetchResponse(m.Header(ErrorCode.NONE, 3, 5, outer), 10))
    assert follower.replica.role.leader_endpoint == ENDPOINTS[3]


def test_records_that_are_refused_after_the_leader_is_gone_are_counted() -> None:
    found, _ = made(state=ElectionState(5))
    assert found.step(RecordsRefused("why"), 1).remote_fault == "why"
    assert found.state.remote_faults == 1
    assert isinstance(found.role, Unattached)


@pytest.mark.parametrize(("damaged", "left"), [(None, None), (22, 22), (24, None), (29, None)])
def test_a_truncation_heals_only_the_damage_that_it_removes(damaged, left) -> None:
    follower = FollowerOf3()
    follower.replica.state.damaged_offset = damaged
    effects = follower.answer(diverging(4, 24))
    assert effects.truncate_to == 24
    assert follower.replica.state.damaged_offset == left


class OlderEpochsUnknown(FakeLog):
    """Answers for an epoch before its first as a log that does not know it: by its end."""

    def end_offset_for_epoch(self, epoch):
        if epoch < self.entries[0][0]:
            return self.last_epoch, self.end_offset
        return super().end_offset_for_epoch(epoch)


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (0, 0, Valid()),
        (0, 3, Valid()),
        (5, 0, Diverging(3, 10)),
        (0, 2, Diverging(3, 10)),
        (5, 3, Valid()),
    ],
)
def test_an_empty_log_may_begin_at_the_start_and_no_other_without_an_epoch(
    offset, epoch, expected
) -> None:
    assert validate_offset_and_epoch(OlderEpochsUnknown([(3, 0)], 10), offset, epoch) == expected
