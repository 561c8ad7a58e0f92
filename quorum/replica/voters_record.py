"""Voter sets as control records: VotersRecord and KRaftVersionRecord (KIP-853).

A voter has one endpoint per controller listener. A replica reaches it by the first listener of its
own controller.listener.names that the voter has.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorum.raft.voter_history import VoterHistory
from quorum.raft.voters import (
    CONTROLLER_LISTENER,
    ReplicaKey,
    Voter,
    VoterSet,
    reachable,
)
from tidemark import records as r
from tidemark.errors import CorruptMessageError
from tidemark.types import ZERO_UUID, Listener

KRAFT_VERSION_MAX = 1
"""The newest supported kraft.version: voters in the log."""


def to_record(voters: VoterSet) -> r.Voters:
    """Returns the control record of a voter set."""
    return r.Voters(
        tuple(
            r.Voter(
                voter.key.replica_id,
                voter.key.directory_id or ZERO_UUID,
                tuple(r.VoterEndpoint(*listener) for listener in voter.listeners),
                0,
                KRAFT_VERSION_MAX,
            )
            for voter in voters
        )
    )


def from_record(record: r.Voters, names: Sequence[str] = (CONTROLLER_LISTENER,)) -> VoterSet:
    """Returns the voter set of a record, for a replica whose controller.listener.names are `names`.
    Raises CorruptMessageError for a voter without endpoints."""
    found = []
    for voter in record.voters:
        if not voter.endpoints:
            raise CorruptMessageError(f"voter {voter.voter_id} has no endpoint")
        listeners = tuple(Listener(e.name, e.host, e.port) for e in voter.endpoints)
        directory_id = None if voter.voter_directory_id == ZERO_UUID else voter.voter_directory_id
        key = ReplicaKey(voter.voter_id, directory_id)
        found.append(Voter(key, reachable(listeners, names), listeners))
    return VoterSet(found)


def quorum_records(kraft_version: int, voters: VoterSet | None) -> list[r.ControlMessage]:
    """Returns the control records for a checkpoint or a first leader; empty with static voters."""
    if kraft_version == 0 or voters is None:
        return []
    return [r.KRaftVersion(kraft_version), to_record(voters)]


def note(
    history: VoterHistory,
    offset: int,
    message: r.ControlMessage,
    names: Sequence[str] = (CONTROLLER_LISTENER,),
) -> None:
    """Adds a control record at `offset` to the history, if it concerns the quorum."""
    match message:
        case r.KRaftVersion():
            history.add_version(offset, message.kraft_version)
        case r.Voters():
            history.add_voters(offset, from_record(message, names))
