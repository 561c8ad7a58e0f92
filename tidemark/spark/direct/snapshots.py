"""Plans in a file: a read that names it gets the same offsets from the same segments.

    with take_snapshot("plan.json", {"bootstrap.servers": servers, "subscribe": "t"}):
        rows = spark.read.format("tidemark").option("bootstrap.servers", servers)
        rows.option("snapshot", "plan.json").load()

The leases of the plan are renewed within the block, and end with it. The file stays. Without the
lease a read of it is exact as well, or raises DataLossError. URLs in the file give the right to
read objects until they expire, so only its owner may read it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tidemark.errors import ConfigError, TidemarkError
from tidemark.spark.direct.pieces import Aborted, DirectRead, ObjectPiece, ReadLease
from tidemark.spark.direct.plans import renew_lease
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import SourceOptions, parse_options

logger = logging.getLogger(__name__)

_VERSION = 1
_CLOSE_S = 30.0

Renew = Callable[[SourceOptions, OffsetRange, ReadLease], None]


@contextmanager
def take_snapshot(path: str | Path, options: Mapping[str, str]) -> Iterator[None]:
    """Plans a batch read, writes the plan to a file, and holds its objects within the block.

    Raises ConfigError, DataLossError and the errors of a plan.
    """
    from tidemark.spark.planning import plan

    parsed = parse_options(options)
    if parsed.direct.snapshot:
        raise ConfigError("snapshot: a plan is not made of another one; leave the option out")
    slices = plan(parsed)
    try:
        write_snapshot(Path(path), slices, parsed.isolation_level)
        with held(parsed, slices):
            yield
    finally:
        for offsets, lease in _leases(slices):
            _try(renew_lease, parsed, offsets, lease._replace(lease_ms=0))


@contextmanager
def held(
    options: SourceOptions, slices: Sequence[OffsetRange], renew: Renew = renew_lease
) -> Iterator[None]:
    """Renews the leases of slices within the block, each third of their time."""
    leases = _leases(slices)
    ended = threading.Event()
    period_s = min((lease.lease_ms for _, lease in leases), default=0) / 3_000

    def keep() -> None:
        while not ended.wait(period_s):
            for offsets, lease in leases:
                _try(renew, options, offsets, lease)

    thread = threading.Thread(target=keep, name="tidemark-snapshot", daemon=True)
    if leases:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if leases:
            thread.join(_CLOSE_S)


def _try(renew: Renew, options: SourceOptions, offsets: OffsetRange, lease: ReadLease) -> None:
    try:
        renew(options, offsets, lease)
    except TidemarkError as error:
        logger.warning("%s: lease %s: %s", offsets.topic_partition, lease.id, error)


def _leases(slices: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ReadLease]]:
    """One lease of each partition, with a slice of it."""
    found = {
        each.topic_partition: (each, each.direct.lease)
        for each in slices
        if each.direct is not None and each.direct.lease is not None
    }
    return list(found.values())


def write_snapshot(path: Path, slices: Sequence[OffsetRange], isolation_level: str) -> None:
    """Writes a plan; a file that is there is replaced at once, or not at all."""
    content = {
        "version": _VERSION,
        "isolation.level": isolation_level,
        "slices": [_to_json(each) for each in slices],
    }
    content["crc"] = _crc(content["slices"])
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(0o600, exist_ok=False)
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_snapshot(path: str | Path, isolation_level: str) -> list[OffsetRange]:
    """The slices of a plan. Raises ConfigError if the file is none, or of another isolation."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise ConfigError(f"snapshot={path}: it has version {content['version']}, not 1")
        if _crc(content["slices"]) != content["crc"]:
            raise ConfigError(f"snapshot={path} is damaged: take it anew")
        isolation, slices = content["isolation.level"], [_from_json(s) for s in content["slices"]]
    except OSError as error:
        raise ConfigError(
            f"snapshot={path}: {error.strerror}; tidemark.spark.take_snapshot writes it, on the "
            "machine of the driver"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"snapshot={path} is no plan: {error!r}") from error
    if isolation != isolation_level:
        raise ConfigError(f"snapshot={path} is {isolation}: give isolation.level={isolation}")
    return slices


def _crc(slices: Any) -> int:
    """Of the numbers, however the file is laid out."""
    return zlib.crc32(json.dumps(slices, sort_keys=True).encode())


def _to_json(offsets: OffsetRange) -> dict[str, Any]:
    topic_id = offsets.topic_id.hex if offsets.topic_id is not None else None
    found: dict[str, Any] = {
        "topic": offsets.topic,
        "partition": offsets.partition,
        "start": offsets.start,
        "end": offsets.end,
        "topic_id": topic_id,
        "leader_epoch": offsets.leader_epoch,
    }
    if offsets.direct is not None:
        pieces, aborted, lease, _ = offsets.direct
        found["pieces"] = [(*piece[:-1], piece.segment_id.hex()) for piece in pieces]
        found["aborted"] = aborted
        found["lease"] = lease
    return found


def _from_json(found: dict[str, Any]) -> OffsetRange:
    direct = None
    if "pieces" in found:
        pieces = tuple(
            ObjectPiece._make([*row, bytes.fromhex(segment)]) for *row, segment in found["pieces"]
        )
        aborted = tuple(Aborted(*row) for row in found["aborted"])
        lease = ReadLease(*found["lease"]) if found["lease"] is not None else None
        direct = DirectRead(pieces, aborted, lease)
    topic_id = UUID(hex=found["topic_id"]) if found["topic_id"] is not None else None
    return OffsetRange(
        *(found["topic"], found["partition"], found["start"], found["end"]),
        *(topic_id, found["leader_epoch"], direct),
    )
