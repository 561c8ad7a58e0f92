"""`tidemark spark run scrub`: the check of `tidemark tier verify`, spread over Spark's tasks.

A task checks some segments, and reads the store itself, by the node's settings. Credentials that
are not among them have to be in the environment of the workers. Whether segments cover the log is
checked in the driver, because that reads one index of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.config import ServerConfig
    from tidemark.types import TopicIdPartition
    from tiering.metadata.cache import RemoteLogMetadataCache
    from tiering.metadata.segments import RemoteLogSegmentMetadata
    from tiering.store.verifying import RemoteFinding

_SEGMENTS_OF_A_JOB = 256
_SEGMENTS_OF_A_TASK = 4


def findings_in_spark(
    spark: Any,
    config: ServerConfig,
    partitions: Sequence[tuple[TopicIdPartition, RemoteLogMetadataCache, tuple[int, int] | None]],
    report: Callable[[int, int], None],
) -> tuple[list[RemoteFinding], int]:
    """Returns the findings, and the number of segments checked; calls `report` with those done, and
    all.

    Raises Spark's errors.
    """
    from tiering.metadata.history import finished
    from tiering.store.listing import open_store
    from tiering.store.verifying import verify_coverage

    segments = [segment for _, cache, _ in partitions for segment in finished(cache)]
    found: list[RemoteFinding] = []
    for begin in range(0, len(segments), _SEGMENTS_OF_A_JOB):
        part = segments[begin : begin + _SEGMENTS_OF_A_JOB]
        tasks = -(-len(part) // _SEGMENTS_OF_A_TASK)
        work = spark.sparkContext.parallelize(part, tasks)
        found += work.mapPartitions(_check_of(config)).collect()
        report(begin + len(part), len(segments))
    storage, _ = open_store(config)
    with closing(storage):
        for _, cache, bounds in partitions:
            found += verify_coverage(storage, cache, bounds)
    return found, len(segments)


def _check_of(
    config: ServerConfig,
) -> Callable[[Iterable[RemoteLogSegmentMetadata]], Iterator[RemoteFinding]]:
    def check(segments: Iterable[RemoteLogSegmentMetadata]) -> Iterator[RemoteFinding]:
        from tiering.store.listing import open_store
        from tiering.store.verifying import verify_segment

        storage, _ = open_store(config)
        with closing(storage):
            for segment in segments:
                yield from verify_segment(storage, segment)

    return check
