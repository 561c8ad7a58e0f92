"""Changes of very many partitions, in steps of some milliseconds.

When a broker of a large cluster stops, tens of thousands of partitions change. A `Sweep` takes the
topics in order, a bounded number of changes per step. Each step is an event of its own, generated
from the image with all earlier steps, so heartbeats, elections and requests proceed in between. The
broker's own record closes its sweep: a new controller in the middle of it finds the rest still to
be done.

    begun --step: records--> appended --accept--> goes on from there ... --> finished
                    |                                                          (closing records)
                    +--append refused--> the same step again, a little later

Changes made by others during a sweep are not missed. `notice` sees every replayed change, and the
sweep visits a topic once more before it closes if the change concerns its task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from uuid import UUID

from quorum.controller.elections import UNSETTLED, ElectionRules, Task
from quorum.controller.result import ControllerResult
from quorum.image import MetadataDelta, MetadataImage, TopicImage
from tidemark.v1 import metadata_pb2 as pb

CHANGES_PER_STEP = 500
LOOKED_AT_PER_STEP = 10_000
"""Partitions that are looked at in a step, whether they change or not."""
RETRY_MS = 500
"""Pause before a step that could not be appended is retried."""

_INDEXED_SHARE = 10  # looking a broker up in a topic's table costs a tenth of making the table
UNLIMITED = 1 << 60

Key = tuple[str, int]
R = TypeVar("R")


class _Rest(NamedTuple):
    """A topic to look at; `indexes` None means all of it."""

    topic_id: UUID
    indexes: list[int] | None = None


class Portion(NamedTuple):
    """Records that a step writes.

    `accept` is called with the last offset once they are appended, or at once if there are none.
    """

    records: list[pb.MetadataRecord]
    finished: bool
    accept: Callable[[int], None]

    def result(self, response: R) -> ControllerResult[R]:
        """Converts the portion to the result of an event."""
        if not self.records:
            self.accept(-1)
            return ControllerResult(response)
        result = ControllerResult.each(self.records, response)
        result.after_append = self.accept
        return result


def _nothing(_: MetadataImage) -> list[pb.MetadataRecord]:
    return []


@dataclass(slots=True)
class Sweep:
    """A task in progress.

    `closing` returns the records that end it, from the image it ends with. `appended` is called
    with the offset of the last record of each step that wrote something.
    """

    key: Key
    task: Task
    closing: Callable[[MetadataImage], list[pb.MetadataRecord]] = _nothing
    appended: Callable[[int], None] | None = None
    _todo: deque[_Rest] | None = None
    _again: dict[UUID, None] = field(default_factory=dict)

    def step(
        self, rules: ElectionRules, *, looked_at_max: int | None = None
    ) -> tuple[list[pb.MetadataRecord], deque[_Rest]]:
        """Returns the changes of the next step and the topics left after it, without closing
        records.

        `advance` takes over what is left.
        """
        todo = self._remaining(rules.image)
        budget = LOOKED_AT_PER_STEP if looked_at_max is None else looked_at_max
        records: list[pb.MetadataRecord] = []
        while todo and budget > 0 and len(records) < CHANGES_PER_STEP:
            topic_id, indexes = todo.popleft()
            topic = rules.image.topics.by_id(topic_id)
            if topic is None:
                continue
            if indexes is None:
                budget -= self._cost(topic)
                indexes = self.task.chosen(rules.image, topic)
            room = CHANGES_PER_STEP - len(records)
            for index in indexes[:room]:
                record = self.task.change(rules, topic, index)
                if record is not None:
                    records.append(record)
            if len(indexes) > room:
                todo.appendleft(_Rest(topic_id, indexes[room:]))
        return records, todo

    def advance(self, todo: deque[_Rest]) -> None:
        self._todo = todo

    def notice(self, delta: MetadataDelta) -> None:
        """Marks topics whose changes concern the task."""
        image, broker_id = delta.image, self.task.broker_id
        if broker_id is None:
            return  # a timed pass: the next one looks at them
        for topic_id, topic in delta.topics_changed.items():
            for partition in topic.partitions.values():
                if broker_id in partition.replicas and self.task.wanted(image, partition):
                    self._again[topic_id] = None
                    break

    def _remaining(self, image: MetadataImage) -> deque[_Rest]:
        if self._todo is None:
            self._todo = deque(_Rest(topic.topic_id) for topic in image.topics.ordered())
        self._todo.extend(map(_Rest, self._again))
        self._again.clear()
        return self._todo.copy()

    def _cost(self, topic: TopicImage) -> int:
        count = len(topic.partitions)
        if self.task.broker_id is not None and topic.is_indexed:
            return 1 + count // _INDEXED_SHARE
        return 1 + count


def unsettled() -> Sweep:
    """The sweep that leaves every partition as the rules want it."""
    return Sweep(("unsettled", 0), UNSETTLED)


class Sweeps:
    """All sweeps in progress, oldest first; soft state of the active controller."""

    def __init__(self) -> None:
        self._sweeps: dict[Key, Sweep] = {}
        self._due_ms = 0

    def __contains__(self, key: object) -> bool:
        return key in self._sweeps

    def __iter__(self) -> Iterator[Key]:
        return iter(self._sweeps)

    def clear(self) -> None:
        self._sweeps.clear()

    def due_ms(self) -> int | None:
        """Time (ms) of the next step; None if there is nothing to do."""
        return self._due_ms if self._sweeps else None

    def notice(self, delta: MetadataDelta) -> None:
        """Passes replayed records to all sweeps."""
        for sweep in self._sweeps.values():
            sweep.notice(delta)

    def add(self, sweep: Sweep) -> None:
        """Adds a sweep that begins with the next step that is due."""
        self._sweeps[sweep.key] = sweep

    def begin(self, sweep: Sweep, rules: ElectionRules) -> Portion:
        """Returns the first step; later steps do the rest. Replaces a sweep of the same key."""
        return self._portion(sweep, rules)

    def next(self, rules: ElectionRules, now_ms: int) -> Portion:
        """Returns a step of the oldest sweep; there has to be one."""
        self._due_ms = now_ms + RETRY_MS
        return self._portion(next(iter(self._sweeps.values())), rules)

    def _portion(self, sweep: Sweep, rules: ElectionRules) -> Portion:
        records, left = sweep.step(rules)
        finished = not left
        changes = [*records, *sweep.closing(rules.image)] if finished else records

        def accept(offset: int) -> None:
            self._due_ms = 0
            sweep.advance(left)
            if finished:
                self._sweeps.pop(sweep.key, None)
            else:
                self._sweeps[sweep.key] = sweep
            if changes and sweep.appended is not None:
                sweep.appended(offset)

        return Portion(changes, finished, accept)
