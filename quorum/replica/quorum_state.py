"""The file `quorum-state`: the election state of a replica that survives a crash.

One line of JSON as Apache Kafka writes it (QuorumStateData; version 1, and version 0 is readable).
It is replaced atomically and durably: tmp, fsync, rename, fsync of the directory. A file that
cannot be read stops the start: voting twice in an epoch is worse than a node that stays down.

One flipped bit can make another vote of a vote. So the line ends with a CRC-32C of all before it,
in a field that Kafka's reader ignores. A file without it is Kafka's, or an older version's.
"""

from __future__ import annotations

import json
from uuid import UUID

from crc32c import crc32c

from commitlog.disk.files import Directory
from quorum.raft.effects import ElectionState
from quorum.raft.voters import ReplicaKey
from tidemark.errors import StorageError
from tidemark.types import ZERO_UUID, uuid_from_text, uuid_to_text

QUORUM_STATE_FILE = "quorum-state"
_UNKNOWN = -1
_CRC = "crc"


def format_state(state: ElectionState) -> bytes:
    """Returns the content of the file."""
    voted = state.voted
    directory_id = voted.directory_id if voted is not None else None
    fields = {
        "leaderId": _UNKNOWN if state.leader_id is None else state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": _UNKNOWN if voted is None else voted.replica_id,
        "votedDirectoryId": uuid_to_text(directory_id or ZERO_UUID),
        "data_version": 1,
    }
    text = json.dumps(fields, separators=(",", ":"))
    return f'{text[:-1]},"{_CRC}":{crc32c(text.encode())}}}'.encode()


def _check_crc(data: bytes, stored: object) -> None:
    """Raises ValueError unless the CRC agrees with all that is before it."""
    text = data[: data.rindex(b',"' + _CRC.encode())] + b"}"
    if stored != crc32c(text):
        raise ValueError("its CRC does not agree")


def parse_state(data: bytes) -> ElectionState:
    """Inverse of `format_state`. Raises ValueError for anything that is not a quorum-state."""
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    if _CRC in fields:
        _check_crc(data, fields[_CRC])
    version = fields.get("data_version")
    if version not in (0, 1):
        raise ValueError(f"data_version {version!r} is not known")
    epoch, leader_id = _whole(fields, "leaderEpoch"), _whole(fields, "leaderId")
    voted_id = _whole(fields, "votedId")
    if epoch < 0:
        raise ValueError(f"leaderEpoch is {epoch}")
    directory_id: UUID | None = None
    if version == 1:
        directory_id = uuid_from_text(str(fields.get("votedDirectoryId", ""))) or None
    if directory_id == ZERO_UUID:
        directory_id = None
    voted = None if voted_id < 0 else ReplicaKey(voted_id, directory_id)
    return ElectionState(epoch, None if leader_id < 0 else leader_id, voted)


def _whole(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}")
    return value


class QuorumStateStore:
    """Reads and replaces the file in a directory."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def read(self) -> ElectionState:
        """Returns the state; epoch 0 if there is no file. Raises StorageError for a broken one."""
        if not self._directory.exists(QUORUM_STATE_FILE):
            return ElectionState()
        try:
            return parse_state(self._directory.read(QUORUM_STATE_FILE))
        except ValueError as error:
            raise StorageError(
                f"{self._directory.path}/{QUORUM_STATE_FILE} is broken ({error}): restore it, or "
                "empty this node's metadata directory and let it join under a new directory id"
            ) from error

    def write(self, state: ElectionState) -> None:
        """Replaces the state; it is durable on return. Raises StorageError and FatalError."""
        self._directory.write_atomic(QUORUM_STATE_FILE, format_state(state))
