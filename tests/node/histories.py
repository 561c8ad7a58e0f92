"""Random histories of interleaved transactions in the log of a partition, and what became of each
record.

Producers write as those of KIP-890 do: sequences begin at 0 in each transaction, whose marker has
the next epoch. What a read_committed reader must get is a function of the history alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from commitlog.types import AppendOrigin
from tidemark.records import EndTransactionMarker, Record, encode_batch, encode_control_batch

PRODUCERS = (5, 6, 7, 8)
KEYS = 6
CODECS = ("none", "none", "lz4", "gzip")

Read = list[tuple[int, str]]
"""Offsets and values."""


@dataclass(slots=True)
class Producer:
    epoch: int = 0
    sequence: int = 0
    offsets: list[int] = field(default_factory=list)  # of the open transaction


class TransactionHistory:
    """Writes to the leader's log; `hosted` finds it at each write."""

    def __init__(
        self,
        hosted: Callable[[], Any],
        seed: int,
        now_ms: Callable[[], int],
        *,
        keyed: bool = False,
    ) -> None:
        self._hosted = hosted
        self.rng = Random(seed)
        self.now_ms = now_ms
        self.keyed = keyed
        self.producers: dict[int, Producer] = {number: Producer() for number in PRODUCERS}
        self.values: dict[int, str] = {}  # of all records, by offset
        self.keys: dict[int, int] = {}
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.markers: set[int] = set()
        self.marker_first: int = 0  # markers that are the first batch of their segment

    def at(self, hosted: Callable[[], Any]) -> None:
        """Goes on at another leader."""
        self._hosted = hosted

    # --- what happens

    def fill(self, steps: int, *, rolls: float = 0.12, leaves_open: bool = False) -> None:
        """Takes steps; at the end all transactions are ended, or one stays open."""
        for _ in range(steps):
            self.step(rolls)
        opened = [number for number, each in self.producers.items() if each.offsets]
        for number in opened:
            self.end(number, committed=self.rng.random() < 0.5)
        if leaves_open:
            self.write(self.rng.choice(PRODUCERS))
            self.write(None)

    def step(self, rolls: float = 0.12) -> None:
        if self.rng.random() < rolls:
            self.roll()
        kind = self.rng.random()
        opened = [number for number, each in self.producers.items() if each.offsets]
        if kind < 0.15:
            self.write(None)
        elif kind < 0.65 or not opened:
            self.write(self.rng.choice(PRODUCERS))
        else:
            self.end(self.rng.choice(opened), committed=self.rng.random() < 0.5)

    def roll(self) -> None:
        self._hosted().log.roll(self.now_ms())

    def write(self, number: int | None, count: int = 0) -> None:
        """A batch of a producer's transaction, or with None of no transaction."""
        log = self._hosted().log
        begin, count = log.log_end_offset, count or self.rng.randint(1, 3)
        offsets = range(begin, begin + count)
        for offset in offsets:
            self.values[offset] = f"v{offset}"
            self.keys[offset] = self.rng.randrange(KEYS) if self.keyed else offset
        records = [
            Record(offset - begin, self.now_ms(), b"k%d" % self.keys[offset],
                   self.values[offset].encode())
            for offset in offsets
        ]  # fmt: skip
        options: dict[str, Any] = {"compression": self.rng.choice(CODECS)}
        if number is None:
            self.committed.update(offsets)
        else:
            producer = self.producers[number]
            options |= {
                "producer_id": number,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
                "transactional": True,
            }
            producer.sequence += count
            producer.offsets.extend(offsets)
        self._append(encode_batch(records, **options), verified=True)

    def end(self, number: int, *, committed: bool) -> None:
        """The marker of a producer's transaction."""
        producer, log = self.producers[number], self._hosted().log
        producer.epoch, producer.sequence = producer.epoch + 1, 0
        marker = encode_control_batch(
            [EndTransactionMarker(committed, 0)],
            base_offset=0,
            timestamp_ms=self.now_ms(),
            partition_leader_epoch=-1,
            producer_id=number,
            producer_epoch=producer.epoch,
        )
        self.markers.add(log.log_end_offset)
        self.marker_first += log.active_segment.base_offset == log.log_end_offset
        self._append(marker, origin=AppendOrigin.COORDINATOR)
        (self.committed if committed else self.aborted).update(producer.offsets)
        producer.offsets.clear()

    def _append(self, data: bytes, **options: Any) -> None:
        hosted = self._hosted()
        hosted.log.append_as_leader(data, hosted.core.leader_epoch, self.now_ms(), **options)
        hosted.appended(0)

    # --- what a reader must get

    @property
    def stable(self) -> int:
        """The first offset of an open transaction; the end without one."""
        opened = [each.offsets[0] for each in self.producers.values() if each.offsets]
        return min(opened, default=self._hosted().log.log_end_offset)

    def expected(self, begin: int = 0, end: int | None = None, *, committed: bool = True) -> Read:
        """The records in [begin, end) that a reader gets, all of them or the committed ones."""
        last = self.stable if end is None else end
        return [
            (offset, value)
            for offset, value in sorted(self.values.items())
            if begin <= offset < last and (not committed or offset in self.committed)
        ]
