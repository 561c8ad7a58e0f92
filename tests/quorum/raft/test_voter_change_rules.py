"""Rules of voter changes and of check-quorum, each on one leader whose followers are scripted."""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LogAppended,
    LogFlushed,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader, Resigned, Unattached
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from tests.quorum.raft.test_rules import FakeLog
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint, Listener

KEYS = {n: ReplicaKey(n, UUID(int=n)) for n in range(1, 8)}
ENDPOINTS = {n: Endpoint("h", n) for n in range(1, 8)}
CHECK_QUORUM_MS = 3000
WAIT_MS = 60_000


class VotersLog(FakeLog):
    """A log whose Voters records are a list of (offset, set)."""

    def __init__(self, *voters: int):
        super().__init__([(4, 0)], 2)
        self.sets = [(0, VoterSet(Voter(KEYS[n], ENDPOINTS[n]) for n in voters))]
        self.kraft_version = 1

    @property
    def voters(self):
        return self.sets[-1][1]

    @voters.setter
    def voters(self, _):
        pass

    @property
    def voters_offset(self):
        return self.sets[-1][0]

    @voters_offset.setter
    def voters_offset(self, _):
        pass

    def was_voter_since(self, key, end_offset):
        return any(voters.is_voter(key) for _, voters in self.sets)


class ScriptedLeader:
    """Replica 1 as the leader of a new epoch, with its log. Keeps all requests as `sent`, and all
    replies by token as `answers`.
    """

    def __init__(self, *voters: int, names=("CONTROLLER",), endpoint=ENDPOINTS[1]):
        self.log = VotersLog(*voters)
        config = ReplicaConfig(
            "c", KEYS[1], VoterSet(()), endpoint, listener_names=names, election_timeout_ms=100
        )
        self.replica = Replica(config, self.log, ElectionState(4), random.Random(1))
        self.now_ms = 10_000
        self.sent, self.answers, self.tokens = [], {}, 0
        self._carry_out(self.replica.start(self.now_ms))
        while isinstance(self.replica.role, Unattached):
            self.pass_ms(1)
        for pre_vote in (True, False):
            if not isinstance(self.replica.role, Leader):
                self._grant_votes(pre_vote=pre_vote)
        assert isinstance(self.replica.role, Leader)
        for node in self.replica.voters.others(1):
            self.answer_probe(node)

    def _grant_votes(self, *, pre_vote):
        asked = [s for s in self.sent if getattr(s.request, "pre_vote", None) is pre_vote]
        header = m.Header(ErrorCode.NONE, None, asked[-1].request.epoch)
        for send in asked:
            self.step(ResponseReceived(send.correlation_id, m.VoteResponse(header, True)))

    def step(self, event):
        self._carry_out(self.replica.step(event, self.now_ms))

    def _carry_out(self, effects):
        log = self.log
        if effects.append_leader_change is not None:
            log.entries.append((self.replica.epoch, log.end_offset))
            log.end_offset += 1
        if effects.append_voters is not None:
            log.sets.append((log.end_offset, effects.append_voters))
            log.end_offset += 1
        self.sent.extend(effects.sends)
        self.answers.update({reply.token: reply.response for reply in effects.replies})
        if effects.changes_log:
            self.step(LogAppended())
            self.step(LogFlushed(log.end_offset))
        self.replica.validate()

    def pass_ms(self, duration_ms):
        """Lets time pass, with a tick whenever the replica asks for one."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.replica.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.step(Tick())
        self.now_ms = end_ms

    def ask(self, request):
        """Sends a request; returns its answer, or None while it is waiting."""
        self.tokens += 1
        self.step(RequestReceived(self.tokens, request))
        return self.answers.get(self.tokens)

    def change(self, request):
        """Sends a voter change; returns its error and message, or None while it is waiting."""
        self.ask(request)
        self.asked = self.tokens
        return self.outcome()

    def outcome(self):
        """The answer to the last change, as `change`."""
        answer = self.answers.get(self.asked)
        return None if answer is None else (answer.header.error, answer.message)

    def fetch(self, *nodes, offset=None):
        """The nodes fetch at an offset (None: the log end)."""
        end_offset = self.log.end_offset if offset is None else offset
        epochs = [epoch for epoch, start in self.log.entries if start < end_offset]
        for node in nodes:
            request = m.FetchRequest(
                "c", KEYS[node], self.replica.epoch, end_offset, epochs[-1], None, 500, 1000
            )
            self.ask(request)

    def commit(self, *nodes):
        """The nodes fetch everything, so that a majority has it."""
        self.fetch(*nodes)
        assert self.replica.high_watermark == self.log.end_offset

    def answer_probe(self, node, error=ErrorCode.NONE):
        """Answers the last BeginQuorumEpoch to a node."""
        (*_, send) = [
            s
            for s in self.sent
            if s.node_id == node and isinstance(s.request, m.BeginQuorumEpochRequest)
        ]
        header = m.Header(error, 1, self.replica.epoch, ENDPOINTS[1])
        self.step(ResponseReceived(send.correlation_id, m.BeginQuorumEpochResponse(header)))
        return send

    @property
    def voters(self):
        return self.replica.voters.ids


def add(node, endpoint=None, listeners=(), **more):
    return m.AddVoterRequest(
        "c", KEYS[node], endpoint or ENDPOINTS[node], WAIT_MS, listeners=listeners, **more
    )


def remove(node):
    return m.RemoveVoterRequest("c", KEYS[node], WAIT_MS)


def update(leader, node, endpoint, listeners=()):
    return m.UpdateVoterRequest("c", leader.replica.epoch, KEYS[node], endpoint, listeners)


# --- when a change may begin ----------------------------------------------------------------------


def test_no_change_begins_before_a_record_of_the_own_epoch_is_committed():
    leader = ScriptedLeader(1, 2, 3)
    leader.fetch(2, 3, offset=2)  # they have all of the earlier epochs, and nothing of this one
    leader.replica.state.raise_high_watermark(2)
    assert leader.log.voters_offset == 0, "the newest set is committed"
    error, message = leader.change(remove(3))
    assert error == ErrorCode.REQUEST_TIMED_OUT
    assert "too new" in message
    leader.commit(2, 3)
    assert leader.change(remove(3)) is None
    assert leader.voters == (1, 2)


def test_no_change_begins_before_the_last_one_is_committed():
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    assert leader.change(replace(remove(3), timeout_ms=100)) is None
    before = leader.log.end_offset - 1
    leader.pass_ms(101)
    assert leader.outcome()[0] == ErrorCode.REQUEST_TIMED_OUT
    assert leader.replica.role.change is None, "only the log knows of the change now"
    leader.fetch(2, 3, offset=before)
    error, message = leader.change(remove(2))
    assert error == ErrorCode.REQUEST_TIMED_OUT
    assert "another change" in message
    assert leader.voters == (1, 2)
    leader.commit(2)
    assert leader.change(remove(2)) == (ErrorCode.NONE, ""), "a sole voter commits at once"
    assert leader.voters == (1,)


def test_a_new_voter_that_never_reached_the_end_of_the_log_is_not_added():
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    assert leader.change(add(3)) is None
    leader.answer_probe(3)
    assert leader.replica.role.change.probed
    for _ in range(20):
        leader.fetch(3, offset=2)
        leader.fetch(2)
        leader.pass_ms(200)
    assert leader.voters == (1, 2), "it fetches, but from far behind"
    leader.fetch(3)
    assert leader.voters == (1, 2, 3)


def test_a_new_voter_that_has_stopped_fetching_is_not_added():
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    leader.fetch(3)
    for _ in range(20):
        leader.fetch(2)
        leader.pass_ms(200)
    assert leader.change(add(3)) is None
    leader.answer_probe(3)
    assert leader.voters == (1, 2)
    leader.fetch(3)
    assert leader.voters == (1, 2, 3)


@pytest.mark.parametrize("timeout_ms", [WAIT_MS, 100])
def test_a_removed_leader_leads_until_its_removal_is_committed(timeout_ms):
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    before = leader.log.end_offset
    assert leader.change(replace(remove(1), timeout_ms=timeout_ms)) is None
    assert leader.voters == (2, 3)
    for _ in range(20):
        leader.fetch(2)
        leader.fetch(3, offset=before)
        leader.pass_ms(200)
        assert isinstance(leader.replica.role, Leader), "one of two is no majority"
    leader.fetch(3)
    in_time = timeout_ms == WAIT_MS
    assert leader.outcome()[0] == (ErrorCode.NONE if in_time else ErrorCode.REQUEST_TIMED_OUT)
    assert isinstance(leader.replica.role, Resigned)


# --- the health of the next set -------------------------------------------------------------------


def quiet(leader, silent, others):
    """Lets nodes be silent for longer than check-quorum waits, while the others fetch."""
    leader.commit(*silent, *others)
    for _ in range(CHECK_QUORUM_MS // 200 + 1):
        leader.fetch(*others)
        leader.pass_ms(200)


def test_a_removal_that_leaves_no_healthy_majority_is_refused_by_the_names_of_the_silent():
    leader = ScriptedLeader(1, 2, 3)
    quiet(leader, silent=[3], others=[2])
    error, message = leader.change(remove(2))
    assert error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert message == (
        "the voters would be 1, 3, but 3 did not fetch the end of the log within 3000 ms, and the "
        "rest is no majority: start the silent voters, or remove them first"
    )
    assert leader.voters == (1, 2, 3)
    assert isinstance(leader.replica.role, Leader)
    assert leader.change(remove(3)) is None, "the silent one can go"
    leader.commit(2)
    assert leader.outcome() == (ErrorCode.NONE, "")


def test_the_leader_is_not_removed_if_one_of_the_two_others_is_silent():
    leader = ScriptedLeader(1, 2, 3)
    quiet(leader, silent=[3], others=[2])
    assert leader.change(remove(1))[0] == ErrorCode.NOT_ENOUGH_REPLICAS
    leader.fetch(3)
    assert leader.change(remove(1)) is None


def test_a_voter_that_fetches_from_far_behind_is_not_healthy():
    leader = ScriptedLeader(1, 2, 3)
    behind = leader.log.end_offset - 1
    leader.commit(2)
    for _ in range(CHECK_QUORUM_MS // 200 + 1):
        leader.fetch(2)
        leader.fetch(3, offset=behind)
        leader.pass_ms(200)
    error, message = leader.change(remove(2))
    assert error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "but 3 did not fetch the end" in message


def test_a_fourth_voter_is_not_added_to_two_of_three_that_lag():
    leader = ScriptedLeader(1, 2, 3)
    behind = leader.log.end_offset - 1
    leader.commit(2, 3)
    for _ in range(CHECK_QUORUM_MS // 200 + 1):
        leader.fetch(2, 3, offset=behind)
        leader.pass_ms(200)
    assert leader.change(add(4))[0] == ErrorCode.NOT_ENOUGH_REPLICAS
    leader.fetch(2)
    assert leader.change(add(4)) is None


@pytest.mark.parametrize("late_ms", [0, CHECK_QUORUM_MS - 1])
def test_check_quorum_waits_anew_after_a_change(late_ms):
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.pass_ms(late_ms)
    assert leader.change(remove(3)) is None
    leader.pass_ms(CHECK_QUORUM_MS - 1)
    assert isinstance(leader.replica.role, Leader)
    leader.pass_ms(1)
    assert isinstance(leader.replica.role, Resigned)


# --- check-quorum ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("voters", "fetching", "leads"),
    [
        ((1, 2, 3), (), False),
        ((1, 2, 3), (2,), True),
        ((1, 2, 3, 4, 5), (2,), False),
        ((1, 2, 3, 4, 5), (2, 3), True),
        ((1, 2), (), False),
        ((1,), (), True),
    ],
)
def test_a_leader_without_fetches_of_a_majority_resigns_in_time(voters, fetching, leads):
    leader = ScriptedLeader(*voters)
    for _ in range(CHECK_QUORUM_MS // 100 - 1):
        leader.pass_ms(100)
        leader.fetch(*fetching)
        assert isinstance(leader.replica.role, Leader)
    leader.pass_ms(100)
    assert isinstance(leader.replica.role, Leader if leads else Resigned)


# --- the endpoint of a voter ----------------------------------------------------------------------


def test_a_voter_without_a_listener_of_the_leader_is_refused_by_the_names():
    leader = ScriptedLeader(1, 2, names=("CONTROLLER", "INNER"))
    leader.commit(2)
    outer = Listener("OUTER", "there", 7)
    error, message = leader.change(add(3, outer.endpoint, (outer,)))
    assert error == ErrorCode.INVALID_REQUEST
    assert "voter 3 has the listeners OUTER" in message
    assert "reaches voters by CONTROLLER, INNER" in message
    error, message = leader.change(update(leader, 2, outer.endpoint, (outer,)))
    assert error == ErrorCode.INVALID_REQUEST
    assert "voter 2 has the listeners OUTER" in message
    inner = Listener("INNER", "here", 7)
    assert leader.change(add(3, outer.endpoint, (outer, inner))) is None
    assert leader.sent[-1].endpoint == inner.endpoint


@pytest.mark.parametrize("kind", ["add", "update"])
def test_two_voters_do_not_get_one_endpoint(kind):
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    twin = Listener("OTHER", *ENDPOINTS[3])
    listeners = (Listener("CONTROLLER", "new", 9), twin)
    if kind == "add":
        error, message = leader.change(add(4, listeners[0].endpoint, listeners))
    else:
        error, message = leader.change(update(leader, 2, listeners[0].endpoint, listeners))
    assert error == ErrorCode.INVALID_REQUEST
    assert message.startswith("h:3 is an endpoint of voter 3 already")


@pytest.mark.parametrize("endpoint", [Endpoint("moved", 1), ENDPOINTS[3]])
def test_a_leader_that_moved_records_its_endpoint_unless_it_is_another_voters(endpoint):
    leader = ScriptedLeader(1, 2, 3, endpoint=endpoint)
    leader.fetch(2, 3)
    recorded = ENDPOINTS[1] if endpoint == ENDPOINTS[3] else endpoint
    assert leader.replica.voters.endpoint(1) == recorded
    assert (leader.replica.role.change is None) == (endpoint == ENDPOINTS[3])


def test_the_new_endpoint_of_a_voter_is_recorded_after_the_voter_answered_there():
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    moved = Endpoint("moved", 2)
    assert leader.change(update(leader, 2, moved)) is None
    assert leader.replica.voters.endpoint(2) == ENDPOINTS[2], "not yet shown"
    probe = leader.answer_probe(2)
    assert (probe.endpoint, probe.request.voter) == (moved, KEYS[2])
    assert leader.replica.voters.endpoint(2) == moved
    leader.commit(2, 3)
    assert leader.outcome() == (ErrorCode.NONE, "")


@pytest.mark.parametrize("error", [ErrorCode.INVALID_VOTER_KEY, ErrorCode.INCONSISTENT_CLUSTER_ID])
def test_an_endpoint_where_another_replica_answers_is_refused(error):
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.change(update(leader, 2, Endpoint("wrong", 2)))
    leader.answer_probe(2, error)
    code, message = leader.outcome()
    assert code == ErrorCode.INVALID_REQUEST
    assert message.startswith("who answers at wrong:2 is not")
    assert message.endswith(error.name)
    assert leader.replica.voters.endpoint(2) == ENDPOINTS[2]


def test_an_endpoint_that_does_not_answer_is_refused_in_time_and_delays_no_other_change():
    leader = ScriptedLeader(1, 2, 3)
    leader.commit(2, 3)
    leader.change(update(leader, 2, Endpoint("silent", 2)))
    leader.pass_ms(2000)
    code, message = leader.outcome()
    assert code == ErrorCode.REQUEST_TIMED_OUT
    assert "does not answer" in message
    leader.commit(2, 3)
    leader.change(update(leader, 2, Endpoint("silent", 2)))
    repeated = leader.tokens
    assert leader.change(remove(2)) is None
    assert leader.voters == (1, 3)
    answer = leader.answers[repeated]
    assert answer.header.error == ErrorCode.REQUEST_TIMED_OUT
    assert "try again" in answer.message


def test_the_answer_to_an_earlier_probe_shows_nothing_about_another_endpoint():
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    leader.change(replace(add(3), timeout_ms=100))
    first = leader.sent[-1]
    leader.pass_ms(100)
    assert leader.outcome()[0] == ErrorCode.REQUEST_TIMED_OUT
    leader.fetch(3)
    leader.change(add(3, Endpoint("elsewhere", 3)))
    header = m.Header(ErrorCode.NONE, 1, leader.replica.epoch, ENDPOINTS[1])
    leader.step(ResponseReceived(first.correlation_id, m.BeginQuorumEpochResponse(header)))
    assert not leader.replica.role.change.probed
    assert leader.sent[-1].endpoint == Endpoint("elsewhere", 3), "its own probe goes out now"
    leader.answer_probe(3)
    assert leader.voters == (1, 2, 3)


def test_a_probe_that_fails_is_repeated():
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    leader.fetch(3)
    leader.change(add(3))
    leader.step(RequestFailed(leader.sent[-1].correlation_id))
    sent = len(leader.sent)
    leader.pass_ms(leader.replica.state.config.retry_backoff_ms)
    assert [send.node_id for send in leader.sent[sent:]] == [3]
    leader.answer_probe(3)
    assert leader.voters == (1, 2, 3)


# --- readers that are no replicas -----------------------------------------------------------------


def test_two_readers_that_are_no_replicas_wait_beside_each_other():
    leader = ScriptedLeader(1, 2)
    leader.commit(2)
    reader = m.FetchRequest(
        "c", ReplicaKey(-1), leader.replica.epoch, leader.log.end_offset, 5, 3, 500, 1000
    )
    assert leader.ask(reader) is None
    first = leader.tokens
    assert leader.ask(reader) is None
    assert first not in leader.answers
    assert {first, leader.tokens} <= set(leader.replica.role.parked)
    follower = replace(reader, replica=KEYS[2])
    leader.ask(follower)
    once = leader.tokens
    leader.ask(follower)
    assert once in leader.answers, "a replica has one fetch at a time"
