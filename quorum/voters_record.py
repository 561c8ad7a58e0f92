"""Voter sets as control records: VotersRecord and KRaftVersionRecord (KIP-853).

A voter has one endpoint, of the controller listener; of a record that names several (Kafka writes
one per listener) the one of that name counts, else the first.
"""

from __future__ import annotations

from quorum.raft.voter_history import VoterHistory
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from tidemark import records as r
from tidemark.errors import CorruptMessageError
from tidemark.types import ZERO_UUID, Endpoint

CONTROLLER_LISTENER = "CONTROLLER"
KRAFT_VERSION_MAX = 1
"""The newest kraft.version known: voters in the log."""


def to_record(voters: VoterSet) -> r.Voters:
    """The control record that says this set."""
    return r.Voters(
        tuple(
            r.Voter(
                voter.key.replica_id,
                voter.key.directory_id or ZERO_UUID,
                (r.VoterEndpoint(CONTROLLER_LISTENER, *voter.endpoint),),
                0,
                KRAFT_VERSION_MAX,
            )
            for voter in voters
        )
    )


def from_record(record: r.Voters) -> VoterSet:
    """The set that a record says; CorruptMessageError for one without endpoints."""
    found = []
    for voter in record.voters:
        if not voter.endpoints:
            raise CorruptMessageError(f"voter {voter.voter_id} has no endpoint")
        named = [e for e in voter.endpoints if e.name == CONTROLLER_LISTENER]
        endpoint = (named or voter.endpoints)[0]
        directory_id = None if voter.voter_directory_id == ZERO_UUID else voter.voter_directory_id
        key = ReplicaKey(voter.voter_id, directory_id)
        found.append(Voter(key, Endpoint(endpoint.host, endpoint.port)))
    return VoterSet(found)


def quorum_records(kraft_version: int, voters: VoterSet | None) -> list[r.ControlMessage]:
    """What a checkpoint and a first leader write; nothing with static voters."""
    if kraft_version == 0 or voters is None:
        return []
    return [r.KRaftVersion(kraft_version), to_record(voters)]


def note(history: VoterHistory, offset: int, message: r.ControlMessage) -> None:
    """Takes over what a control record at `offset` says about the quorum, if anything."""
    match message:
        case r.KRaftVersion():
            history.add_version(offset, message.kraft_version)
        case r.Voters():
            history.add_voters(offset, from_record(message))
