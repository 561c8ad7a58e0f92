"""The checksum of a fetch answer: CRC-32C of all its fields, from the leader's disk to the
follower's.

A batch's own CRC leaves out its base offset and leader epoch, and nothing covers the high watermark
or a diverging epoch. One wrong bit there could commit, relabel or truncate records. The leader
seals an answer as it leaves the replica, and the follower checks it before the replica sees it. An
older leader sends no checksum.

The CRC covers big-endian integers of eight bytes, -1 where there is no value. These are error code,
leader id, leader epoch, port of the leader's endpoint, high watermark, and log start offset. Then
follow diverging epoch and its end offset, and epoch and end offset of the checkpoint. The host of
the endpoint in UTF-8 and the records end it.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from crc32c import crc32c

from quorum.raft.messages import FetchResponse, Response

_FIELDS = struct.Struct(">10q")


def checksum_of(response: FetchResponse) -> int:
    """Returns the CRC-32C of all fields but `checksum`."""
    header = response.header
    leader_id, high_watermark = header.leader_id, response.high_watermark
    endpoint = header.leader_endpoint
    epoch, end_offset = response.diverging_epoch or (-1, -1)
    snapshot = response.snapshot_id
    fields = _FIELDS.pack(
        header.error,
        -1 if leader_id is None else leader_id,
        header.epoch,
        -1 if endpoint is None else endpoint.port,
        -1 if high_watermark is None else high_watermark,
        response.log_start_offset,
        epoch,
        end_offset,
        -1 if snapshot is None else snapshot.epoch,
        -1 if snapshot is None else snapshot.end_offset,
    )
    crc: int = crc32c(fields if endpoint is None else fields + endpoint.host.encode())
    if response.records:
        crc = crc32c(response.records, crc)
    return crc


def sealed(response: FetchResponse, records: bytes = b"") -> FetchResponse:
    """Returns the answer with these records, and its checksum."""
    whole = replace(response, records=records)
    return replace(whole, checksum=checksum_of(whole))


def is_intact(response: Response) -> bool:
    """Whether an answer agrees with its checksum. True for one that has none."""
    if not isinstance(response, FetchResponse) or response.checksum is None:
        return True
    return response.checksum == checksum_of(response)
