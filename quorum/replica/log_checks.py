"""Checks of what no CRC covers in a metadata log: base offset and leader epoch of a batch.

Offsets of a metadata log have no gaps, because it is never compacted. Each epoch begins with the
LeaderChange record of its leader; any other batch has the epoch of the one before it. Source:
KIP-595. Kafka's followers ignore batches beyond the leader's epoch (KAFKA-18723).
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.errors import CorruptMessageError
from tidemark.records import (
    BatchHeader,
    ControlType,
    decode_control_records,
    iter_batches,
    verify_crc,
)


def begins_epoch(buffer: bytes | memoryview, header: BatchHeader) -> bool:
    """Whether the batch begins with a LeaderChange record. Raises CorruptMessageError."""
    if not header.is_control:
        return False
    verify_crc(buffer, header.position, header)
    records = decode_control_records(buffer, header.position)
    return bool(records) and records[0].type is ControlType.LEADER_CHANGE


def check_continuation(records: bytes, end_offset: int, last_epoch: int, leader_epoch: int) -> None:
    """Raises CorruptMessageError unless these are whole batches from the log end on, with epochs
    that follow `last_epoch` and end at the leader's.
    """
    end = 0
    for position, header in iter_batches(records):
        if header.base_offset != end_offset:
            raise CorruptMessageError(
                f"a batch begins at offset {header.base_offset}, where the log ends at {end_offset}"
            )
        epoch = header.partition_leader_epoch
        if epoch != last_epoch:
            if not last_epoch < epoch <= leader_epoch:
                raise CorruptMessageError(
                    f"the batch at offset {end_offset} has epoch {epoch}, which is not within the "
                    f"log's last epoch {last_epoch} and the leader's, {leader_epoch}"
                )
            if not begins_epoch(records, header):
                raise CorruptMessageError(
                    f"the batch at offset {end_offset} has epoch {epoch} after {last_epoch}, but "
                    "no LeaderChange record begins it"
                )
            last_epoch = epoch
        end_offset, end = header.next_offset, position + header.size_bytes
    if end != len(records) or not records:
        raise CorruptMessageError(f"{len(records) - end} bytes behind the last batch are none")


class RestCheck:
    """The check of a log at rest, batch by batch, from its first one on.

    `starts` are the epochs of leader-epoch-checkpoint by start offset: a second source. A batch may
    begin an epoch without a LeaderChange record where this file agrees (logs of older versions).
    """

    def __init__(self, begin: int, starts: Mapping[int, int], epoch_max: int | None) -> None:
        """`epoch_max` is the epoch of quorum-state; None if there is none."""
        self._expected, self._starts, self._epoch_max = begin, starts, epoch_max
        self._epoch: int | None = 0 if begin == 0 else None  # of the batch before; None: unknown
        self._doubt: tuple[int, str] | None = None

    def damage_in(self, records: bytes | memoryview) -> tuple[int, str] | None:
        """Checks the next batches of the log. Returns the offset where it must end and why, or
        None."""
        for _, header in iter_batches(records):
            doubt, self._doubt = self._doubt, None
            if doubt is not None and header.partition_leader_epoch != self._epoch:
                return doubt
            reason = self._fault(records, header)
            if reason is not None:
                return self._expected, reason
            self._epoch, self._expected = header.partition_leader_epoch, header.next_offset
        return None

    def damage_at_end(self) -> tuple[int, str] | None:
        """Returns the damage that only the end of the log shows, or None."""
        return self._doubt

    def _is_beyond_quorum_state(self, epoch: int) -> bool:
        """Whether quorum-state contradicts the epoch. That file has no checksum and may be older
        than the log. So a batch that begins an epoch is believed if the epoch checkpoint names it,
        and so are those that follow in the epoch."""
        return self._epoch_max is not None and epoch > self._epoch_max and epoch != self._epoch

    def _fault(self, records: bytes | memoryview, header: BatchHeader) -> str | None:
        epoch, offset = header.partition_leader_epoch, header.base_offset
        if offset != self._expected:
            return f"a batch begins at offset {offset}"
        begins = begins_epoch(records, header)
        if self._is_beyond_quorum_state(epoch) and not (
            self._starts.get(offset) == epoch and (begins or self._epoch is None)
        ):
            return f"its epoch {epoch} is beyond quorum-state's, {self._epoch_max}"
        if self._epoch is None:
            return None
        if epoch < self._epoch or (begins and epoch == self._epoch):
            return f"its epoch is {epoch} after {self._epoch}"
        if epoch > self._epoch:
            noted = self._starts.get(offset)
            if not begins and noted != epoch:
                return f"its epoch is {epoch} after {self._epoch}, without a LeaderChange record"
            if noted not in (None, epoch):  # the next batch tells which of both is wrong
                self._doubt = offset, f"its epoch is {epoch}, but {noted} by the epoch checkpoint"
        return None
