"""The loop of a job that works in batches: an interrupted one first, then up to the run's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.errors import TidemarkError
from tidemark.spark.jobs.batches import JobBatch, next_batch
from tidemark.spark.jobs.journal import Journal
from tidemark.spark.jobs.reading import Bounds, Source


class CountMismatchError(TidemarkError):
    """A job wrote other records than the topic has; the message lists the partitions."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch that is done; `records` are those of the run, `left` are offsets up to its end."""

    number: int
    records: int
    left: int


Report = Callable[[Progress], None]


@dataclass(slots=True)
class JobRun:
    """One run of a job, over a journal that it has taken."""

    journal: Journal[JobBatch]
    place: Bounds
    source: Source

    def next(self, limit: int | None) -> JobBatch | None:
        """The batch after the last planned one. Raises DataLossError."""
        return next_batch(
            *(self.journal.last, self.place.starts, self.place.ends, self.place.known),
            limit=limit,
            fail_on_data_loss=self.source.fail_on_data_loss,
        )

    def left(self) -> int:
        """Offsets that are not done: of an interrupted batch, and behind it."""
        last, rest = self.journal.last, self.next(None)
        interrupted = 0 if self.journal.is_last_done or last is None else last.size
        return interrupted + (0 if rest is None else rest.size)

    def batches(
        self,
        limit: int,
        work: Callable[[JobBatch], None],
        report: Report,
        prepare: Callable[[JobBatch], None] = lambda batch: None,
    ) -> tuple[int, int | None]:
        """Does all batches; returns their number, and the first one's, if there was one.

        `prepare` is called before a plan is durable, `work` finishes the batch in the journal.
        """
        before, first, done = self.journal.records, None, 0
        while True:
            if self.journal.is_last_done:
                planned = self.next(limit)
                if planned is None:
                    return done, first
                prepare(planned)
                self.journal.plan(planned)
            batch = self.journal.last
            assert batch is not None
            work(batch)
            first, done = (batch.number if first is None else first), done + 1
            report(Progress(batch.number, self.journal.records - before, self.left()))
