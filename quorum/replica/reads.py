"""Completion of the answers whose content is read from the log or from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from quorum.raft import messages as m
from quorum.raft.effects import ReadRecords, ReadSnapshot, Reply
from quorum.replica.metadata_log import ReplicatedLog
from quorum.replica.own_damage import OwnLogDamagedError, read_records
from quorum.replica.sealing import sealed
from tidemark.errors import (
    ErrorCode,
    OffsetOutOfRangeError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
)


def complete(log: ReplicatedLog, reply: Reply) -> tuple[m.Response, OwnLogDamagedError | None]:
    """Returns the response with what it reads, and the damage of the own log if that was found."""
    response, read = reply.response, reply.read
    try:
        if isinstance(response, m.FetchResponse):
            records = read_records(log, read) if isinstance(read, ReadRecords) else b""
            return sealed(response, records), None
        if isinstance(response, m.FetchSnapshotResponse) and isinstance(read, ReadSnapshot):
            piece = log.read_snapshot_piece(read.snapshot_id, read.position, read.max_bytes)
            return replace(response, data=piece), None
    except OffsetOutOfRangeError:  # the log was cleaned under a fetch: it is answered empty
        assert isinstance(response, m.FetchResponse)
        return sealed(response), None
    except OwnLogDamagedError as error:
        header = replace(response.header, error=ErrorCode.KAFKA_STORAGE_ERROR)
        return sealed(m.FetchResponse(header)), error
    except (SnapshotNotFoundError, PositionOutOfRangeError) as error:
        header = replace(response.header, error=error.code)
        return m.FetchSnapshotResponse(header), None
    return response, None
