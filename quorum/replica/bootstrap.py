"""The first state of a cluster, as `storage format` writes it: voters and feature levels.

The voters are the bootstrap checkpoint 0-0 of the metadata log (KIP-853):

    --standalone                 this controller alone
    --initial-controllers LIST   id@host:port:directoryId,...: the same list on each of them
    --no-initial-controllers     none: this controller (or broker) joins a cluster that exists

The first leader writes kraft.version and voters into the log; the checkpoint itself stays local.
Without any of the three options the voters are static: controller.quorum.voters (kraft.version 0).

The feature levels are in a separate file beside the log, `bootstrap.checkpoint`, in the format of a
checkpoint (KIP-778). The first active controller writes its records into the empty log.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from commitlog.disk.files import Directory
from quorum.image.features import FIRST_LEVELS, SUPPORTED, check_supported
from quorum.image.image import METADATA_VERSION
from quorum.image.records import decode_record, encode_record, feature_record
from quorum.raft.voters import (
    CONTROLLER_LISTENER,
    ReplicaKey,
    Voter,
    VoterSet,
)
from quorum.replica.voters_record import KRAFT_VERSION_MAX, quorum_records
from snapshot.framing import encode_footer, encode_header, encode_values
from snapshot.names import SnapshotId
from snapshot.reader import FileSnapshotReader
from snapshot.writer import SnapshotWriter
from tidemark.errors import ConfigError, CorruptMessageError, FatalError, UnsupportedVersionError
from tidemark.types import METADATA_TOPIC, Endpoint, Listener, uuid_from_text

BOOTSTRAP_FILE = "bootstrap.checkpoint"
_FIRST = SnapshotId(0, 0)


def parse_initial_controllers(text: str, listener: str = CONTROLLER_LISTENER) -> VoterSet:
    """Parses `id@host:port:directoryId,...` with endpoints of the named controller listener. Raises
    ConfigError that names the invalid part."""
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
        listeners = (Listener(listener, *endpoint),)
        voters[voter_id] = Voter(ReplicaKey(voter_id, directory_id), endpoint, listeners)
    if not voters:
        raise ConfigError("initial controllers: there is none")
    return VoterSet(voters.values())


def write_bootstrap_checkpoint(directory: Directory, voters: VoterSet) -> None:
    """Writes `__cluster_metadata-0/00000000000000000000-0000000000.checkpoint`, durably."""
    metadata = directory.subdirectory(f"{METADATA_TOPIC}-0")
    directory.fsync()
    quorum = quorum_records(KRAFT_VERSION_MAX, voters)
    SnapshotWriter(metadata, _FIRST, 0, quorum=quorum).freeze()


def write_first_levels(directory: Directory, levels: Mapping[str, int]) -> None:
    """Writes `bootstrap.checkpoint` into the metadata directory, durably."""
    values = [encode_record(feature_record(name, level)) for name, level in sorted(levels.items())]
    batches = [encode_header(0, 0, 0), encode_values(values, 1, 0, 0)]
    batches.append(encode_footer(1 + len(values), 0, 0))
    directory.write_atomic(BOOTSTRAP_FILE, b"".join(batches))


def read_first_levels(directory: Directory) -> Mapping[str, int]:
    """Returns the levels of `write_first_levels`, or FIRST_LEVELS if there is no file. Raises
    FatalError for a damaged file, and for levels this version does not support."""
    if not directory.exists(BOOTSTRAP_FILE):
        return FIRST_LEVELS
    levels: dict[str, int] = {}
    try:
        for values in FileSnapshotReader(directory, _FIRST, name=BOOTSTRAP_FILE).batches():
            for value in values:
                record = decode_record(value).feature_level
                levels[record.name] = record.feature_level
        if METADATA_VERSION not in levels:
            raise CorruptMessageError(f"it has no {METADATA_VERSION}")
        check_supported(levels, SUPPORTED, "this node")
    except UnsupportedVersionError as error:
        raise FatalError(f"{BOOTSTRAP_FILE}: {error}, or format with a lower level") from error
    except (CorruptMessageError, DecodeError) as error:
        raise FatalError(
            f"{BOOTSTRAP_FILE} is damaged ({error}): format this controller again"
        ) from error
    return levels
