"""The offsets that `tidemark groups reset-offsets` sets."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.cli.output import read_text
from tidemark.errors import ConfigError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.client.models import OffsetAndMetadata
    from tidemark.client.sync import Admin

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Destination:
    """The way to the new offsets: a name or time of ListOffsets, an offset, a shift, or a file. One
    is set; none: as it is."""

    spec: int | None = None
    offset: int | None = None
    shift: int | None = None
    from_file: str | None = None


def resets(
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    ago: str | None,
    from_file: str | None,
) -> Destination:
    """The one of the options that is set. Raises ConfigError."""
    from tidemark.cli.consume import timestamp_of
    from tidemark.client.models import OffsetSpec

    chosen: list[Destination] = []
    if to_earliest:
        chosen.append(Destination(spec=OffsetSpec.EARLIEST))
    if to_latest:
        chosen.append(Destination(spec=OffsetSpec.LATEST))
    if to_current:
        chosen.append(Destination())
    if to_offset is not None:
        chosen.append(Destination(offset=to_offset))
    if shift_by is not None:
        chosen.append(Destination(shift=shift_by))
    if to_datetime is not None:
        chosen.append(Destination(spec=timestamp_of(to_datetime)))
    if ago is not None:
        chosen.append(Destination(spec=round(time.time() * 1000) - _duration_ms(ago)))
    if from_file is not None:
        chosen.append(Destination(from_file=from_file))
    if len(chosen) != 1:
        raise ConfigError("say where to, once: --to-earliest, --shift-by, --from-file, ...")
    return chosen[0]


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise ConfigError(f"--by-duration {text!r} is not like 30s, 90m, 36h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]


def targets(
    admin: Admin,
    way: Destination,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within its log. Where there is no record of the time it is
    the end."""
    from tidemark.client.models import OffsetSpec

    wanted: dict[TopicPartition, int | None]
    if way.from_file is not None:
        wanted = dict(offsets_in(read_text(Path(way.from_file))))
    elif way.spec is not None:
        found = admin.list_offsets(dict.fromkeys(partitions, way.spec))
        wanted = {part: None if at is None else at.offset for part, at in found.items()}
    else:
        wanted = {}
        for part in partitions:
            now = committed[part].offset if part in committed else None
            if way.offset is not None:
                wanted[part] = way.offset
            elif now is None:
                raise ConfigError(f"the group has no offset of {part}: it can not be kept or moved")
            else:
                wanted[part] = now + (way.shift or 0)
    starts = admin.list_offsets(dict.fromkeys(wanted, int(OffsetSpec.EARLIEST)))
    ends = admin.list_offsets(dict.fromkeys(wanted, int(OffsetSpec.LATEST)))
    result: dict[TopicPartition, int] = {}
    for part, offset in wanted.items():
        start, end = starts[part], ends[part]
        first, last = (start.offset if start else 0), (end.offset if end else 0)
        result[part] = last if offset is None else min(max(offset, first), last)
    return result


def offsets_in(text: str) -> Iterable[tuple[TopicPartition, int]]:
    """The lines topic,partition,offset of a CSV file. Raises ConfigError."""
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or row[0].startswith("#"):
            continue
        try:
            topic, partition, offset = (cell.strip() for cell in row)
            yield TopicPartition(topic, int(partition)), int(offset)
        except ValueError:
            raise ConfigError(
                f"line {number}: {','.join(row)!r} is not topic,partition,offset"
            ) from None
