"""The file `log-bounds`: lower bounds of a metadata log's durable end and high watermark.

A restart would forget both otherwise. A log that ends below its own durable end has lost records
that this replica acknowledged. A leader that asks for a truncation below the bound of the high
watermark would have acknowledged records lost. The file is written lazily: some seconds after a
flush, when the log is cleaned, and at a clean stop. Only a truncation lowers the durable end, and
it writes the file first. Kafka keeps neither for its metadata log.

It is one line of JSON with a CRC-32C of its two numbers. A damaged file counts as missing: both
bounds only ever add to what the log itself shows.
"""

from __future__ import annotations

import json
import logging

from crc32c import crc32c

from commitlog.disk.files import Directory, DiskError
from quorum.raft.log_view import NO_BOUNDS, KnownBounds

LOG_BOUNDS_FILE = "log-bounds"

logger = logging.getLogger(__name__)


def _checksum(bounds: KnownBounds) -> int:
    crc: int = crc32c(f"{bounds.end_offset} {bounds.high_watermark}".encode())
    return crc


def format_bounds(bounds: KnownBounds) -> bytes:
    """Returns the content of the file."""
    fields = {
        "endOffset": bounds.end_offset,
        "highWatermark": bounds.high_watermark,
        "crc": _checksum(bounds),
        "data_version": 0,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_bounds(data: bytes) -> KnownBounds:
    """Inverse of `format_bounds`. Raises ValueError."""
    fields = json.loads(data)
    if not isinstance(fields, dict) or fields.get("data_version") != 0:
        raise ValueError("it has no known data_version")
    end_offset, high_watermark = fields.get("endOffset"), fields.get("highWatermark")
    if not isinstance(end_offset, int) or not isinstance(high_watermark, int):
        raise ValueError(f"its offsets are {end_offset} and {high_watermark}")
    bounds = KnownBounds(end_offset, high_watermark)
    if fields.get("crc") != _checksum(bounds):
        raise ValueError("its CRC does not agree")
    return bounds


class LogBoundsStore:
    """The bounds of one log, as on disk and as of now."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._saved = self._now = self._read()
        self.lost = False
        """Whether the log lost its tail, and has not fetched it again. The durable end stays."""

    def _read(self) -> KnownBounds:
        if not self._directory.exists(LOG_BOUNDS_FILE):
            return NO_BOUNDS
        try:
            return parse_bounds(self._directory.read(LOG_BOUNDS_FILE))
        except ValueError as error:
            logger.warning("%s/%s: %s", self._directory.path, LOG_BOUNDS_FILE, error)
            return NO_BOUNDS

    @property
    def now(self) -> KnownBounds:
        return self._now

    @property
    def saved(self) -> KnownBounds:
        """The bounds on disk."""
        return self._saved

    def opened(self, end_offset: int) -> None:
        """Compares the bounds with the end of what is on disk, log or checkpoint."""
        self.lost = end_offset < self._saved.end_offset

    def note_durable(self, end_offset: int) -> None:
        """Everything below this offset is durable now."""
        if not self.lost and end_offset > self._now.end_offset:
            self._now = KnownBounds(end_offset, self._now.high_watermark)

    def note_committed(self, high_watermark: int) -> None:
        """Everything below this offset is committed."""
        if high_watermark > self._now.high_watermark:
            self._now = KnownBounds(self._now.end_offset, high_watermark)

    def lower_to(self, end_offset: int) -> None:
        """Lowers the durable end before the log is truncated; durable on return."""
        if self.lost or end_offset >= self._now.end_offset:
            return
        self._now = KnownBounds(end_offset, self._now.high_watermark)
        if end_offset < self._saved.end_offset:
            self._write(self._now)

    def found_again(self, end_offset: int) -> None:
        """Ends the loss: the log, durable up to here, has all that a leader committed, or the
        operator gave up what is missing (`quorum recover`)."""
        self.lost = False
        self._now = KnownBounds(end_offset, min(end_offset, self._now.high_watermark))

    def save(self) -> None:
        """Writes the bounds if they changed. A full disk leaves the older ones, which hold as well.
        May run in any thread, but not beside a change of the log."""
        now = self._now
        if now == self._saved:
            return
        try:
            self._write(now)
        except DiskError as error:
            if not error.is_full:
                raise
            logger.warning("the bounds of the metadata log are not written: %s", error)

    def _write(self, bounds: KnownBounds) -> None:
        self._directory.write_atomic(LOG_BOUNDS_FILE, format_bounds(bounds))
        self._saved = bounds
