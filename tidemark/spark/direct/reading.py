"""Reads a slice of the tier within a task: objects in, Arrow batches in Spark's schema out.

Whatever hinders a direct read leads to the brokers, from the offset on that is read next. They have
the records, or tell exactly what is lost. A URL that has expired is replaced by a new one first.
A lease holds objects that the brokers give up. So what a store that did not answer may still have
is not lost, not even to a query that tolerates losses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.errors import ApiError, CorruptMessageError
from tidemark.spark.clients import CLIENTS
from tidemark.spark.columns import SliceColumns
from tidemark.spark.direct.batches import AbortedBatches
from tidemark.spark.direct.leases import LEASES, KeptLeases
from tidemark.spark.direct.objects import (
    ObjectUnreadableError,
    StoreUnavailableError,
    UrlExpiredError,
)
from tidemark.spark.direct.pieces import ObjectPiece
from tidemark.spark.direct.plans import new_urls
from tidemark.spark.direct.ranges import Buffers, Chunk, RangesAhead, chunks_of
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.options import SourceOptions
from tidemark.spark.slices import ahead, slice_batches

logger = logging.getLogger(__name__)

RenewUrls = Callable[[SourceOptions, OffsetRange, Sequence[ObjectPiece]], Sequence[ObjectPiece]]


def read_direct(
    options: SourceOptions, offsets: OffsetRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the records in the range, as `tidemark.spark.slices.read_slice`."""
    read = DirectSlice(options, offsets, schema)
    yield from ahead(read.batches(), read.abort)


class DirectSlice:
    """The read of one slice: where it is, and the pieces that are left."""

    def __init__(
        self,
        options: SourceOptions,
        offsets: OffsetRange,
        schema: pa.Schema,
        *,
        renew_urls: RenewUrls = new_urls,
        leases: KeptLeases | None = None,
    ) -> None:
        assert offsets.direct is not None
        self._options = options
        self._offsets = offsets
        self._schema = schema
        self._renew_urls = renew_urls
        self._leases = leases or LEASES
        self._aborted = AbortedBatches(offsets.direct.aborted)
        self._position = offsets.start
        self._pieces: Sequence[ObjectPiece] = offsets.direct.pieces
        self._renewed_at = -1
        self._ranges: RangesAhead | None = None
        self._is_aborted = False
        self._unanswered: Exception | None = None  # of a store that may have the rest
        self.buffers = Buffers()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the records, from objects as far as they can be read.

        Raises the errors of `tidemark.spark.slices.slice_batches`, CorruptMessageError for records
        that can not be decoded, and StoreUnavailableError for those that only the store may have.
        """
        while self._pieces and not self._is_aborted:
            yield from self._of_objects()
        if self._position < self._offsets.end and not self._is_aborted:
            yield from self._of_brokers()

    def _of_brokers(self) -> Iterator[pa.RecordBatch]:
        options, why = self._options, self._unanswered
        if why is not None:
            options = replace(options, fail_on_data_loss=True)
        rest = replace(self._offsets, start=self._position, direct=None)
        with CLIENTS.borrowed(options) as consumer:
            try:
                yield from slice_batches(consumer, options, rest, self._schema)
            except DataLossError as error:
                if why is None:
                    raise
                raise StoreUnavailableError(
                    f"{str(error).partition(';')[0]}; the store may still have them, and does not "
                    f"give them now ({why}): try again, or read by direct=false what brokers have"
                ) from error

    def abort(self) -> None:
        """Ends a read in another thread soon, with less than all records."""
        self._is_aborted = True
        if self._ranges is not None:
            self._ranges.close()

    def _of_objects(self) -> Iterator[pa.RecordBatch]:
        """Batches of the pieces; then there are no more of them, or others."""
        deadline_s = self._options.poll_timeout_ms / 1000
        self._ranges = ranges = RangesAhead(self._pieces, self.buffers, deadline_s)
        chunks = chunks_of(ranges, self._offsets.leader_epoch, self.buffers)
        piece, columns = None, SliceColumns(self._offsets, self._schema)
        try:
            while (chunk := self._next(chunks)) is not None:
                if chunk.piece is not piece:  # another lineage may go on behind its end
                    piece = chunk.piece
                    end = min(piece.end, self._offsets.end)
                    columns = SliceColumns(replace(self._offsets, end=end), self._schema)
                content = memoryview(self._aborted.removed(chunk.content))
                yield from columns.batches(content, self._position)
                self._position = max(self._position, min(chunk.next_offset, piece.end))
                self.buffers.give(chunk.buffer)
        finally:
            ranges.close()

    def _next(self, chunks: Iterator[Chunk]) -> Chunk | None:
        """The next chunk. None at the end of the pieces, and after a failure, which leaves those
        that are read then.
        """
        self._leases.touch(self._options, self._offsets)
        try:
            chunk = next(chunks, None)
        except UrlExpiredError as error:
            logger.info("%s: %s", self._offsets.topic_partition, error)
            self._pieces = self._with_new_urls(error)
            return None
        except (ObjectUnreadableError, CorruptMessageError) as error:
            level = logging.DEBUG if self._is_aborted else logging.WARNING
            logger.log(
                level,
                "%s: the rest of %d to %d, from %d on, is read from the brokers: %s",
                *(self._offsets.topic_partition, self._offsets.start, self._offsets.end - 1),
                *(self._position, error),
            )
            self._unanswered = error if isinstance(error, StoreUnavailableError) else None
            chunk = None
        if chunk is None:
            self._pieces = ()
        return chunk

    def _with_new_urls(self, refused: UrlExpiredError) -> Sequence[ObjectPiece]:
        """The pieces that are left, none if a new URL is refused, too."""
        if self._renewed_at == self._position:
            self._unanswered = refused
            return ()
        self._renewed_at = self._position
        left = [piece for piece in self._pieces if piece.end > self._position]
        try:
            return self._renew_urls(self._options, self._offsets, left)
        except ApiError as error:
            logger.warning("%s: no new URL: %s", self._offsets.topic_partition, error)
            self._unanswered = error
            return ()
