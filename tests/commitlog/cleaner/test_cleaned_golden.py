"""Three cleanings of one log with an advancing clock, compared with those of Apache Kafka's Cleaner
(4.3.0) of the same files.

The log has all codecs, tombstones, aborted and committed transactions, idempotent producers, and
two passes of the delete horizon. Differences are those of DIVERGENCES.md alone. The last batch of a
group of segments stays as an empty one. An empty batch has a maximum timestamp above 0 only if it
is kept for a producer. A group of which only empty batches stay is joined with the next one.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commitlog.cleaner.choice import cleanable
from commitlog.cleaner.cleaning import Cleaning
from commitlog.cleaner.io import CleanerIo, Throttle
from commitlog.cleaner.offset_map import OffsetMap
from commitlog.disk.files import Directory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.opening import open_log
from tests.commitlog.builders import TP
from tidemark.config import TopicConfig
from tidemark.records import BatchHeader, Record, decode_batch, iter_batches

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0-more" / "cleaning"


class Kept(NamedTuple):
    """A batch that a cleaning left."""

    header: BatchHeader
    records: list[Record]

    @property
    def facts(self) -> tuple[Any, ...]:
        """Returns all that must equal Kafka's: not the size and CRC, which depend on the codec's
        build.
        """
        maximum = self.header.max_timestamp_ms if self.records else -1
        changed = self.header._replace(batch_length=0, crc=0, position=0, max_timestamp_ms=maximum)
        return (*changed, self.records)


def memory_of(folder: Path) -> MemoryDirectory:
    directory = MemoryDirectory()
    for path in folder.iterdir():
        directory.write_atomic(path.name, path.read_bytes())
    return directory


def kept(directory: Directory, end_offset: int) -> list[Kept]:
    found = []
    for name in directory.list():
        if name.endswith(".log") and int(name[:20]) < end_offset:
            data = directory.read(name)
            found += [Kept(h, decode_batch(data, at)) for at, h in iter_batches(data)]
    return found


def joined(theirs: Directory, bases: list[int]) -> list[int]:
    """Returns Kafka's base offsets without those that follow segments without records."""
    begun, has_records = [], True
    for base in bases:
        if has_records:
            begun.append(base)
            has_records = False
        name = f"{base:020d}.log"  # one without any bytes is not among the files
        data = theirs.read(name) if theirs.exists(name) else b""
        has_records = has_records or any(h.record_count for _, h in iter_batches(data))
    return begun


def aborted(directory: Directory, end_offset: int) -> list[tuple[int, int]]:
    """Returns (producer id, offset of the marker) of the transaction indexes, in their order."""
    names = [n for n in directory.list() if n.endswith(".txnindex") and int(n[:20]) < end_offset]
    data = b"".join(directory.read(name) for name in names)
    return [(entry[1], entry[3]) for entry in struct.iter_unpack(">hqqqq", data)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_cleaning_leaves_what_kafkas_leaves(number: int) -> None:
    folder = GOLDEN / str(number)
    how = json.loads((folder / "how.json").read_text())
    settings = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in how["config"].items()
    }
    directory, now_ms = memory_of(folder / "before"), how["now"]
    log = open_log(
        directory,
        TP,
        TopicConfig(**settings),
        now_ms=now_ms,
        clean=True,
        producer_expiration_ms=how["producer_expiration_ms"],
    )
    log.update_high_watermark(how["high_watermark"])
    found = cleanable(log, how["checkpoint"], now_ms)
    cleaning = Cleaning(log, found, now_ms, CleanerIo(65_536, Throttle(1e15), lambda: False))
    cleaning.build_map(OffsetMap(1 << 20, 0.9))
    while (group := cleaning.next_group()) is not None:
        cleaning.swap(group)
    end = how["cleaned_to"]
    assert cleaning.end_offset == end
    theirs = memory_of(folder / "after")
    assert [s.base_offset for s in log.segments if s.base_offset < end] == joined(
        theirs, how["segments"]
    )

    wanted = kept(theirs, end)
    known = {batch.header.base_offset for batch in wanted}
    ours = [b for b in kept(directory, end) if b.records or b.header.base_offset in known]
    assert [batch.facts for batch in ours] == [batch.facts for batch in wanted]
    assert aborted(directory, end) == aborted(theirs, end)
