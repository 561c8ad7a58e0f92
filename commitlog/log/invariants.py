"""What must hold for a log at any time; tests ask after every step."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commitlog.log.log import Log


def validate(log: Log) -> None:
    """Asserts the order of segments and offsets, and asks epochs and producers the same."""
    for one, following in pairwise(log.segments):
        assert one.base_offset < following.base_offset, log.segments
    assert log.log_start_offset <= log.log_end_offset or not log.size_bytes
    assert log.recovery_point <= log.log_end_offset
    assert log.high_watermark <= log.log_end_offset
    assert log.active_segment.next_offset <= log.log_end_offset
    log.epochs.validate()
    log.producers.validate()
