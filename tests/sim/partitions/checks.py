"""Invariants of data partitions: a clean election loses no committed record (I6), and a committed
offset has one record (I5). An unclean election needs its conditions.

Committed is what a leader's high watermark has passed. Every acknowledgement with acks=all and
every read of a consumer lies below one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from quorum.image import LeaderRecoveryState, PartitionRegistration
from tests.sim.checks import Violation
from tests.sim.partitions.log import ModelLog, Record

if TYPE_CHECKING:
    from tests.sim.partitions.broker import DataBroker


class RecordChecks:
    """The committed records of each partition, and who leads them."""

    def __init__(self, seen: Counter[str]) -> None:
        self.seen = seen
        self.committed: dict[int, list[Record]] = {}
        self._committed_in: dict[int, list[int]] = {}  # epoch of the leader that committed it
        self._newest: dict[int, tuple[int, DataBroker, ModelLog]] = {}

    def on_led(
        self, broker: DataBroker, index: int, epoch: int, log: ModelLog, *, recovering: bool
    ) -> None:
        """Checks a broker that begins to lead: it has what earlier leaders committed. An unclean
        election gives up what it lacks.

        A broker may learn of its leadership after the next one began; then it commits nothing."""
        newest = self._newest.get(index)
        if newest is not None and newest[0] > epoch:
            self.seen["leader learned too late"] += 1
            return
        self._newest[index] = (epoch, broker, log)
        missing = self._first_missing(index, epoch, log)
        if missing is None:
            return
        committed = self.committed[index]
        if not recovering:
            raise Violation(
                f"I6 a clean election loses no committed record at broker {broker.broker_id}: "
                f"partition {index}, epoch {epoch}, offset {missing} of {len(committed)}, "
                f"log end {log.end}"
            )
        self.seen["unclean election loses records"] += 1
        del committed[missing:]
        del self._committed_in[index][missing:]

    def on_high_watermark(self, broker: DataBroker, index: int, epoch: int, end: int) -> None:
        """Takes what a leader's high watermark passed as committed. The newest leader has to have
        the same."""
        log, committed = broker.logs[index], self.committed.setdefault(index, [])
        epochs = self._committed_in.setdefault(index, [])
        newest = self._newest[index]
        if newest[0] > epoch and newest[2].records[:end] != log.records[:end]:
            raise Violation(
                f"I6 what an earlier leader commits is at the newest, too: partition {index} below "
                f"{end}, broker {broker.broker_id} in epoch {epoch}, broker "
                f"{newest[1].broker_id} in epoch {newest[0]}"
            )
        known = min(end, len(committed))
        if committed[:known] != log.records[:known]:
            raise Violation(
                f"I5 a committed offset has one record: partition {index} below {known} at broker "
                f"{broker.broker_id} in epoch {epoch}"
            )
        committed += log.records[len(committed) : end]
        epochs += [epoch] * (len(committed) - len(epochs))

    def on_change(
        self, index: int, before: PartitionRegistration, after: PartitionRegistration
    ) -> None:
        """Checks a change by the controller: an unclean election needs empty lists."""
        was, now = before.leader_recovery_state, after.leader_recovery_state
        if now is was or now is not LeaderRecoveryState.RECOVERING:
            return
        self.seen["unclean election"] += 1
        heirs = {*before.isr, *before.elr} & {*after.isr, *after.elr} - {after.leader}
        if heirs or after.isr != (after.leader,):
            raise Violation(f"I6 partition {index} had heirs for a clean election: {before}")

    def _first_missing(self, index: int, epoch: int, log: ModelLog) -> int | None:
        """First offset that a leader of an earlier epoch committed and the log does not have."""
        committed, records = self.committed.get(index, []), log.records
        if records[: len(committed)] == committed:
            return None
        for offset, record in enumerate(committed):
            has = offset < len(records) and records[offset] == record
            if not has and self._committed_in[index][offset] < epoch:
                return offset
        return None
