"""Names and the record of a sink: transactional ids, and the decision of its last batch.

A sink has one name, which is its consumer group, the driver's transactional id, and the prefix of
those of task attempts:

    tidemark-sink-<sinkId>/<partition of the batch>/<slot>

Attempts of all batches take the slots of their partition in turn, and each the first one that is
free. So there are no more ids than attempts were ever open at once. An attempt is known by the
producer's epoch, which grows with each.

The decision is a committed offset of the group, batch + 1. Its metadata names the attempts that
count. Brokers limit metadata to 4096 bytes, so it is cut over the partitions 0, 1, ... of a topic
that has the sink's name and does not exist. One transaction writes all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemark.errors import ConfigError, TidemarkError

PREFIX = "tidemark-sink-"
_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_PIECE_BYTES = 3_900  # with its head below offset.metadata.max.bytes
_VERSION = 2  # of version 1, ids named the batch and the run
_SLOTS = 100


class SinkError(TidemarkError):
    """A batch was not written; Spark may run it again."""


class Attempt(NamedTuple):
    """The transaction of a task attempt, flushed and open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Decision(NamedTuple):
    """A batch that counts, and the attempts of the run that does. `query` is empty for a batch
    job."""

    batch: int
    run: str
    query: str
    winners: tuple[Attempt, ...]


def sink_name(sink_id: str) -> str:
    """Raises ConfigError for an id that names of groups and topics do not allow."""
    if not _SINK_ID.fullmatch(sink_id):
        raise ConfigError(
            f"sinkId={sink_id!r}: it has 1 to 200 of the characters A-Z, a-z, 0-9, '.', '_', '-'"
        )
    return PREFIX + sink_id


def slots(sink: str, partition: int, first: int) -> Iterator[str]:
    """The transactional ids that an attempt may take, in their order. `first` is the number of the
    attempt, as those that run at once have different ones."""
    return (f"{sink}/{partition}/{slot}" for slot in range(first, first + _SLOTS))


def attempts_pattern(sink: str) -> str:
    """The RE2 expression of all attempts' transactional ids."""
    return f"{re.escape(sink)}/.*"


def to_pieces(decision: Decision) -> list[str]:
    """The metadata of the partitions 0, 1, ..."""
    text = json.dumps(
        {
            "version": _VERSION,
            "batch": decision.batch,
            "run": decision.run,
            "query": decision.query,
            "winners": [[_tail(each.transactional_id), *each[1:]] for each in decision.winners],
        },
        separators=(",", ":"),
    )
    count = -(-len(text) // _PIECE_BYTES)
    return [
        f"{decision.run} {number + 1}/{count} "
        + text[number * _PIECE_BYTES : (number + 1) * _PIECE_BYTES]
        for number in range(count)
    ]


def from_pieces(sink: str, pieces: Mapping[int, str]) -> Decision | None:
    """The inverse, of metadata by partition. None: nothing was decided yet.

    Pieces of an earlier decision, which was longer, may be behind those of the last one. Raises
    SinkError for anything else.
    """
    if not pieces:
        return None
    try:
        run, place, _ = pieces[0].split(" ", 2)
        count = int(place.partition("/")[2])
        text = ""
        for number in range(count):
            one_run, one_place, piece = pieces[number].split(" ", 2)
            if (one_run, one_place) != (run, f"{number + 1}/{count}"):
                raise ValueError(f"piece {number} is of another decision")
            text += piece
        found = json.loads(text)
        if found["version"] not in (1, _VERSION):
            raise ValueError(f"version {found['version']}")
        batch = int(found["batch"])
        prefix = sink if found["version"] > 1 else f"{sink}/{batch}/{run}"
        return Decision(
            batch,
            run,
            str(found["query"]),
            tuple(
                Attempt(f"{prefix}/{tail}", int(producer_id), int(epoch))
                for tail, producer_id, epoch in found["winners"]
            ),
        )
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise SinkError(
            f"the offsets of group {sink} are not those of a sink ({error!r}): give the query"
            " another sinkId"
        ) from None


def sink_of(transactional_id: str) -> str:
    """The sinkId of an attempt's transactional id."""
    return transactional_id.split("/")[0].removeprefix(PREFIX)


def _tail(transactional_id: str) -> str:
    """Partition and slot."""
    return "/".join(transactional_id.split("/")[-2:])


def check_owner(last: Decision | None, wanted: Decision) -> None:
    """Raises ConfigError if the last decision was another query's, or a query or a batch job goes
    back.

    Another query counts its batches anew, so each of them would be taken for an old one. Spark
    repeats the last batch of a query alone. Earlier ones come from an older checkpoint, whose next
    batches have other rows than those that the sink has by these numbers.
    """
    if last is None:
        return
    if last.query != wanted.query:
        raise ConfigError(
            f"sinkId: another query has used it, up to batch {last.batch} (query"
            f" {last.query or 'of a batch job'}; this one is {wanted.query or 'a batch job'}): give"
            " each query its own sinkId, also one that begins with a new checkpoint"
        )
    if wanted.batch >= last.batch:
        return
    if wanted.query:
        raise ConfigError(
            f"batch {wanted.batch} of query {wanted.query}: the sink has written batch {last.batch}"
            " already, so the checkpoint is an older one, and rows would be lost or twice: begin"
            " with a new checkpoint, another sinkId, and starting offsets that you have checked"
        )
    raise ConfigError(
        f"batchId={wanted.batch}: this sinkId has written batch {last.batch} already, and"
        " batches of one sinkId grow: give an earlier one another sinkId"
    )
