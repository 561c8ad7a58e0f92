"""Keys of replicas, and the voter set.

The set is a value: static from controller.quorum.voters (kraft.version 0), or the content of the
newest Voters record of the log (kraft.version 1, KIP-853). A change makes a new VoterSet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tidemark.types import Endpoint, Listener

CONTROLLER_LISTENER = "CONTROLLER"
"""The default name of a listener."""


def reachable(listeners: Sequence[Listener], names: Sequence[str]) -> Endpoint:
    """Returns the endpoint at which a replica reaches a voter. This is the first of `names` (its
    controller.listener.names) that the voter has, or else the voter's first listener."""
    for name in names:
        for listener in listeners:
            if listener.name == name:
                return listener.endpoint
    return listeners[0].endpoint


@dataclass(slots=True, frozen=True)
class ReplicaKey:
    """A replica and its log directory (KIP-853). `directory_id` is None if it is not known."""

    replica_id: int
    directory_id: UUID | None = None

    def matches(self, other: ReplicaKey) -> bool:
        """Whether both are the same replica, and their directories are not known to differ."""
        if self.replica_id != other.replica_id:
            return False
        unknown = self.directory_id is None or other.directory_id is None
        return unknown or self.directory_id == other.directory_id


# same name as tidemark/records/control.py: a voter as the replica knows it, not as bytes
@dataclass(slots=True, frozen=True)
class Voter:
    """A voter: all its `listeners` as in the log, and the `endpoint` that this replica uses (see
    `reachable`). Without listeners, the endpoint stands for one of the default name."""

    key: ReplicaKey
    endpoint: Endpoint
    listeners: tuple[Listener, ...] = ()

    def __post_init__(self) -> None:
        if not self.listeners:
            object.__setattr__(self, "listeners", (Listener(CONTROLLER_LISTENER, *self.endpoint),))


class VoterSet:
    """The voters in ascending order of id, so that runs repeat."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter]) -> None:
        found = {voter.key.replica_id: voter for voter in voters}
        self._voters = dict(sorted(found.items()))

    @classmethod
    def static(
        cls, endpoints: Mapping[int, Endpoint], listener: str = CONTROLLER_LISTENER
    ) -> VoterSet:
        """The set of controller.quorum.voters. Directory ids are not known (kraft.version 0), and
        the endpoints belong to the first listener this replica names."""
        return cls(
            Voter(ReplicaKey(node), endpoint, (Listener(listener, *endpoint),))
            for node, endpoint in endpoints.items()
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"VoterSet({list(self._voters.values())})"

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def with_voter(self, voter: Voter) -> VoterSet:
        """This set with one more voter, or with a new endpoint of a present one."""
        return VoterSet((*self._voters.values(), voter))

    def without(self, replica_id: int) -> VoterSet:
        return VoterSet(v for v in self._voters.values() if v.key.replica_id != replica_id)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._voters)

    def __len__(self) -> int:
        return len(self._voters)

    def is_voter(self, key: ReplicaKey) -> bool:
        voter = self._voters.get(key.replica_id)
        return voter is not None and voter.key.matches(key)

    def is_only_voter(self, key: ReplicaKey) -> bool:
        return len(self._voters) == 1 and self.is_voter(key)

    def others(self, replica_id: int) -> tuple[int, ...]:
        return tuple(node for node in self._voters if node != replica_id)

    def key(self, replica_id: int) -> ReplicaKey:
        voter = self._voters.get(replica_id)
        return voter.key if voter is not None else ReplicaKey(replica_id)

    def endpoint(self, replica_id: int) -> Endpoint | None:
        voter = self._voters.get(replica_id)
        return voter.endpoint if voter is not None else None

    def reachable_endpoint(self, replica_id: int, reported: Endpoint | None) -> Endpoint | None:
        """Returns the endpoint at which this replica reaches a node whose address was reported by
        another.

        Among a voter's known listeners this is the one of this replica's own network, which may
        differ from the reporter's. An address that the voters do not have is newer than theirs.
        """
        known = [listener.endpoint for listener in self.listeners(replica_id)]
        if reported is None or reported in known:
            return self.endpoint(replica_id)
        return reported

    def listeners(self, replica_id: int) -> tuple[Listener, ...]:
        """All listeners of a voter; empty for a non-voter."""
        voter = self._voters.get(replica_id)
        return voter.listeners if voter is not None else ()

    def endpoints(self) -> dict[int, Endpoint]:
        return {node: voter.endpoint for node, voter in self._voters.items()}

    @property
    def majority(self) -> int:
        return len(self._voters) // 2 + 1

    def has_majority(self, replica_ids: Iterable[int]) -> bool:
        return sum(1 for node in set(replica_ids) if node in self._voters) >= self.majority
