"""Errors that only a client raises; those of a server's answers are in `tidemark.errors`."""

from __future__ import annotations

from tidemark.errors import TidemarkError


class BufferExhaustedError(TidemarkError):
    """The producer's buffer.memory is full and did not drain in max.block.ms."""

    retriable = True


class ClientClosedError(TidemarkError):
    """The client was closed before this was done."""


class NoOffsetForPartitionError(TidemarkError):
    """The partition has no position and auto_offset_reset is "none": seek first."""
