"""The first voters of a cluster: `storage format` writes them as the bootstrap checkpoint 0-0
(KIP-853).

    --standalone                 this controller alone
    --initial-controllers LIST   id@host:port:directoryId,...: the same list on each of them
    --no-initial-controllers     none: this controller (or broker) joins a cluster that exists

The first leader writes kraft.version and voters into the log; the checkpoint itself stays local.
Without any of the three the voters are static: controller.quorum.voters (kraft.version 0).
"""

from __future__ import annotations

from commitlog.files import Directory
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.voters_record import KRAFT_VERSION_MAX, quorum_records
from snapshot.names import SnapshotId
from snapshot.writer import SnapshotWriter
from tidemark.errors import ConfigError
from tidemark.types import METADATA_TOPIC, Endpoint, uuid_from_text


def parse_initial_controllers(text: str) -> VoterSet:
    """`id@host:port:directoryId,...`; ConfigError names the part that is not so."""
    voters: dict[int, Voter] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        node, at, rest = part.partition("@")
        address, colon, directory = rest.rpartition(":")
        try:
            if not at or not colon:
                raise ValueError
            voter_id, endpoint = int(node), Endpoint.parse(address)
            directory_id = uuid_from_text(directory)
            if voter_id < 0 or directory_id.int <= 1:
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"initial controllers: {part!r} is not id@host:port:directoryId (the directory id "
                "as `storage random-uuid` prints it)"
            ) from None
        if voter_id in voters:
            raise ConfigError(f"initial controllers: {voter_id} is named twice")
        voters[voter_id] = Voter(ReplicaKey(voter_id, directory_id), endpoint)
    if not voters:
        raise ConfigError("initial controllers: there is none")
    return VoterSet(voters.values())


def write_bootstrap_checkpoint(directory: Directory, voters: VoterSet) -> None:
    """Writes `__cluster_metadata-0/00000000000000000000-0000000000.checkpoint`, durably."""
    metadata = directory.subdirectory(f"{METADATA_TOPIC}-0")
    directory.fsync()
    quorum = quorum_records(KRAFT_VERSION_MAX, voters)
    SnapshotWriter(metadata, SnapshotId(0, 0), 0, quorum=quorum).freeze()
