"""The outcomes in the logs, computed without code of production that knows transactions."""

from __future__ import annotations

from collections import defaultdict

from node.partition.hosted import HostedPartition
from tests.sim.transactions.ledger import TransactionViolation, View
from tidemark.records import iter_batches
from tidemark.records.plain import iter_records
from tidemark.testing import Cluster
from tidemark.types import TopicPartition

_READ_BYTES = 1 << 20
_COMMIT = 1


def led(cluster: Cluster) -> dict[TopicPartition, HostedPartition]:
    """All partitions, where they are led."""
    found: dict[TopicPartition, HostedPartition] = {}
    for node in cluster.brokers:
        if node.server is not None and node.server.broker is not None:
            for hosted in node.server.broker.partitions:
                if hosted.is_leader and not hosted.is_gone:
                    known = found.get(hosted.topic_partition)
                    if known is None or known.core.leader_epoch < hosted.core.leader_epoch:
                        found[hosted.topic_partition] = hosted
    return found


def unstable(cluster: Cluster) -> list[str]:
    """Partitions with an open transaction, or with records that are not committed."""
    return [
        f"{partition}: last stable offset {hosted.log.last_stable_offset}, high watermark"
        f" {hosted.log.high_watermark}, end {hosted.log.log_end_offset}"
        for partition, hosted in sorted(led(cluster).items())
        if hosted.log.last_stable_offset != hosted.log.log_end_offset
    ]


class Audit:
    """The outcomes that markers tell, over all partitions."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, int], bool] = {}

    def check(self, hosted: HostedPartition, view: View | None) -> None:
        """Compares a whole log with what readers saw of it; without a view only its markers with
        those of other logs. Raises TransactionViolation."""
        pending: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        visible: list[tuple[int, bytes]] = []
        log = hosted.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            found = log.read(offset, _READ_BYTES)
            for position, header in iter_batches(found.records):
                records = list(iter_records(found.records, position))
                if header.is_control:
                    key = records[0].key or b""
                    committed = key[3] == _COMMIT
                    self._mark(hosted, header.producer_id, header.producer_epoch, committed)
                    ended = pending.pop(header.producer_id, [])
                    visible += ended if committed else []
                else:
                    pairs = [(record.offset, record.value or b"") for record in records]
                    (pending[header.producer_id] if header.is_transactional else visible).extend(
                        pairs
                    )
            offset = found.next_offset
        if view is None:
            return
        seen = list(zip(view.offsets, view.values, strict=True))
        if sorted(visible) != seen:
            missing = sorted(set(visible) - set(seen))
            more = sorted(set(seen) - set(visible))
            raise TransactionViolation(
                f"readers and log differ: {hosted.topic_partition} missed {missing[:5]}, and saw"
                f" {more[:5]}"
            )

    def _mark(self, hosted: HostedPartition, producer_id: int, epoch: int, committed: bool) -> None:
        if self._outcomes.setdefault((producer_id, epoch), committed) != committed:
            raise TransactionViolation(
                f"a transaction has two outcomes: that of producer {producer_id} with epoch"
                f" {epoch} in {hosted.topic_partition} and elsewhere"
            )
