"""Result of a rule: records to write, and the answer to give once they are committed.

Records come in groups. A group is written atomically, in one batch of the log. Groups are packed
into batches up to Kafka's limit of records per atomic operation (QuorumController, 10000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quorum.image import MetadataImage
from quorum.image.image import METADATA_VERSION
from tidemark.errors import PolicyViolationError, UnsupportedVersionError
from tidemark.v1 import metadata_pb2 as pb

R = TypeVar("R")

RECORDS_PER_BATCH_MAX = 10_000


def check_operations(count: int) -> None:
    """Raises PolicyViolationError if a request asks for more changes than one event may make."""
    if count > RECORDS_PER_BATCH_MAX:
        raise PolicyViolationError(
            f"{count} changes in one request are more than {RECORDS_PER_BATCH_MAX}: divide it into "
            "several"
        )


def check_level(image: MetadataImage, least: int, what: str) -> None:
    """Raises UnsupportedVersionError while metadata.version has no records of `what`."""
    level = image.features.get(METADATA_VERSION, 0)
    if level < least:
        raise UnsupportedVersionError(
            f"{what} need {METADATA_VERSION} {least}, {level} is in effect: raise it with"
            " `tidemark features upgrade`"
        )


@dataclass(slots=True)
class ControllerResult(Generic[R]):
    """`groups` of records and the `response` to give when all of them are committed.

    `after_append` is called with the offset of the last record appended, if there are any.
    """

    response: R
    groups: list[list[pb.MetadataRecord]] = field(default_factory=list)
    after_append: Callable[[int], None] | None = None

    @classmethod
    def atomic(cls, records: list[pb.MetadataRecord], response: R) -> ControllerResult[R]:
        """A result whose records go into one batch."""
        return cls(response, [records] if records else [])

    @classmethod
    def each(cls, records: list[pb.MetadataRecord], response: R) -> ControllerResult[R]:
        """A result whose records are independent: a large number may be split over batches."""
        return cls(response, [[record] for record in records])

    @property
    def records(self) -> list[pb.MetadataRecord]:
        return [record for group in self.groups for record in group]

    def batches(self) -> Iterator[list[pb.MetadataRecord]]:
        """Packs the groups into batches; a group is never split."""
        batch: list[pb.MetadataRecord] = []
        for group in self.groups:
            if batch and len(batch) + len(group) > RECORDS_PER_BATCH_MAX:
                yield batch
                batch = []
            batch.extend(group)
        if batch:
            yield batch
