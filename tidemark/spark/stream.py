"""The reader of a streaming query: asks the cluster, and leaves what follows to `stream_offsets`.

Spark 4.2 and later pass the start and a limit to `latestOffset`. They also let a source end at what
was there when a query with AvailableNow began. Spark 4.0 and 4.1 do neither: a batch reads all
there is, AvailableNow is one batch, and maxOffsetsPerTrigger is refused. So is subscribePattern:
after a restart, a topic that a node does not list yet would be read again from its first record.

Offset methods run in one long-lived process of the driver. `read` runs in a task, in an instance
that has its options alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tidemark.client import Consumer
from tidemark.errors import ConfigError
from tidemark.spark import stream_offsets as core
from tidemark.spark.direct.plans import directed
from tidemark.spark.lookups import Lookups
from tidemark.spark.offsets import split_ranges
from tidemark.spark.options import SourceOptions
from tidemark.spark.planning import Known, look_around, offsets_of
from tidemark.spark.reporting import GroupReport
from tidemark.spark.sizes import open_sampler, sample
from tidemark.spark.source import SlicePartition, read_partition
from tidemark.spark.versions import limits
from tidemark.spark.worker import in_one_line

if TYPE_CHECKING:
    import pyarrow as pa


class TidemarkStreamReader:
    """Reads topics batch by batch; its methods are those of Spark's DataSourceStreamReader."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises ConfigError for what this Spark does not make possible."""
        if limits is None and options.triggers.offsets_max is not None:
            raise ConfigError("maxOffsetsPerTrigger needs Spark 4.2: leave it out, or upgrade")
        if limits is None and options.triggers.bytes_max is not None:
            raise ConfigError("maxBytesPerTrigger needs Spark 4.2: leave it out, or upgrade")
        if limits is None and options.pattern:
            raise ConfigError(
                "subscribePattern in a stream needs Spark 4.2: name the topics in subscribe, or "
                "upgrade"
            )
        self._options = options
        self._schema = schema
        self._lookups: Lookups | None = None
        self._sampler: Consumer | None = None
        self._initial: dict[str, Any] | None = None
        self._target: core.StreamOffset | None = None
        self._last: core.StreamOffset = {}
        group = options.commit_group_id
        servers, security = options.bootstrap_servers, options.security
        self._group = GroupReport(servers, group, security=security) if group else None
        self._patience = core.Patience(
            options.triggers.offsets_min, options.triggers.delay_max_ms, _now_ms()
        )

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first batch: the same whenever this reader is asked."""
        with in_one_line():
            if self._initial is None:
                known = self._look_around(() if self._options.fail_on_data_loss else self._named())
                assert self._lookups is not None
                starts = offsets_of(self._lookups, self._options, self._options.starting, known)
                self._initial = core.to_json(core.begin_at(starts, _ends(known)))
            return self._initial

    def getDefaultReadLimit(self) -> Any:
        """The limit of the options, which Spark passes back to `latestOffset`."""
        if self._options.triggers.offsets_max is not None:
            return limits.ReadMaxRows(self._options.triggers.offsets_max)
        if self._options.triggers.offsets_min is not None:
            return limits.ReadMinRows(self._options.triggers.offsets_min)
        if self._options.triggers.bytes_max is not None:
            return limits.ReadMaxBytes(self._options.triggers.bytes_max)
        return limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end that no batch of this query goes beyond."""
        with in_one_line():
            self._target = self._log_ends()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch, or `start` if there is none yet.

        Raises DataLossError.
        """
        with in_one_line():
            begin = self._last if start is None else core.from_json(start)
            if start is not None:
                self._report(begin)
            known = self._look_around({tp.topic for tp in begin})
            end: core.StreamOffset = core.end_of_log(
                begin,
                _ends(known),
                fail_on_data_loss=self._options.fail_on_data_loss,
                gone=known.gone,
            )
            if self._target is not None:
                end = core.at_most(begin, end, self._target)
            elif type(limit).__name__ != "ReadAllAvailable":
                lag = sum(core.lags_between(begin, end).values())
                if begin and self._patience.waits(lag, _now_ms()):
                    return core.to_json(begin)
            end = core.limited(begin, end, getattr(limit, "max_rows", None))
            bytes_max = self._options.triggers.bytes_max
            if bytes_max is not None and type(limit).__name__ != "ReadAllAvailable":
                end = self._limited_by_bytes(begin, end, bytes_max)
            self._last = end
            return core.to_json(self._last)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the logs, for the progress of the query."""
        with in_one_line():
            return core.to_json(self._log_ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SlicePartition]:
        """The slices of a batch. Raises DataLossError."""
        with in_one_line():
            self._last = core.from_json(end)
            loses = self._options.fail_on_data_loss
            ranges = core.ranges_between(core.from_json(start), self._last, fail_on_data_loss=loses)
            slices = split_ranges(
                ranges,
                slices_min=self._options.slices_min,
                records_per_slice_max=self._options.records_per_slice_max,
            )
            if self._options.direct.mode != "false":
                if self._lookups is None:
                    self._lookups = Lookups(self._options)
                slices = directed(self._lookups, self._options, slices)
            return [SlicePartition(offsets) for offsets in slices]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Arrow batches of exactly the slice's offsets; runs in a task. Raises DataLossError."""
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Tells the group of commitGroupId, if there is one: the checkpoint has the offsets."""
        self._report(core.from_json(end))

    def _report(self, done: core.StreamOffset) -> None:
        """Spark asks for a next offset, or commits a batch, when those before it are done."""
        if self._group is not None:
            self._group.report({tp: place.offset for tp, place in done.items()})

    def stop(self) -> None:
        """Closes the connections."""
        if self._group is not None:
            self._group.wait(1)
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        if self._lookups is not None:
            self._lookups.close()
            self._lookups = None

    def _limited_by_bytes(
        self, begin: core.StreamOffset, end: core.StreamOffset, bytes_max: int
    ) -> core.StreamOffset:
        places = core.places_to_read(begin, end)
        if not places:
            return end
        if self._sampler is None:
            self._sampler = open_sampler(self._options)
        return core.limited_by_bytes(begin, end, bytes_max, sample(self._sampler, places))

    def _log_ends(self) -> core.StreamOffset:
        """The ends of all logs that there are; a topic that is gone has none."""
        ends = _ends(self._look_around(self._named()))
        return core.end_of_log({}, ends, fail_on_data_loss=False)

    def _named(self) -> set[str]:
        return {*self._options.topics, *(tp.topic for tp in self._options.partitions)}

    def _look_around(self, begun: Collection[str]) -> Known:
        if self._lookups is None:
            self._lookups = Lookups(self._options)
        self._lookups.restart()
        return look_around(self._lookups, self._options, begun)


def _ends(known: Known) -> dict[Any, core.LogEnds]:
    return {
        tp: core.LogEnds(
            known.topic_ids[tp], known.earliest[tp], known.latest[tp], known.epochs[tp]
        )
        for tp in known.partitions
    }


def _now_ms() -> float:
    return time.monotonic() * 1000
