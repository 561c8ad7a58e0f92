"""Stories of the coordinators: each request, the records that it appends, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from coordinator.records import groups as g
from coordinator.records.transactions import TransactionState
from coordinator.runtime.result import CoordinatorResult
from coordinator.transactions.transaction import ProducerIdAndEpoch
from tests.coordinator.groups import driver as groups
from tests.coordinator.transactions import driver as transactions
from tests.coordinator.transactions.driver import P0, P1, TIMEOUT_MS, TXN
from tidemark.errors import ApiError, code_of
from tidemark.types import TopicPartition

A = TypeVar("A")


class Tale:
    """Lines with the time in ms since the story began."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, text: str) -> None:
        self.lines.append(f"# {text}")

    def note(self, now_ms: int, text: str) -> None:
        self.lines.append(f"{now_ms - 1_000_000:6}  {text}")

    def story(self) -> str:
        return "\n".join(self.lines) + "\n"


class Transactions(transactions.Driver):
    """A transaction coordinator that writes down what happens."""

    def __init__(self) -> None:
        self.tale = Tale()
        super().__init__()

    def note(self, text: str) -> None:
        self.tale.note(self.mono_ms, text)

    def apply(self, result: CoordinatorResult[A]) -> A:
        for key, value in result.records:
            name = "" if value is None else TransactionState(value.transaction_status).name
            told = "forgotten" if value is None else f"{name} {_producer(value)}"
            if value is not None and value.transaction_partitions:
                found = [
                    f"{topic.topic}-{n}"
                    for topic in value.transaction_partitions
                    for n in topic.partition_ids
                ]
                told += f", {' '.join(found)}"
            self.note(f"    log: {key.transactional_id} is {told}")
        return super().apply(result)

    def ask(self, who: str, what: str, ask: Callable[[], Any]) -> Any:
        """A request with its answer."""
        self.note(f"{who} -> {what}")
        try:
            answer = ask()
        except ApiError as error:
            self.note(f"{who} <- {code_of(error).name}")
            return None
        told = "done"
        if isinstance(answer, ProducerIdAndEpoch):
            told = f"go on as {_producer(answer)}"
        self.note(f"{who} <- {told}")
        return answer

    def begin(self, who: str) -> ProducerIdAndEpoch:
        def ask() -> Any:
            found = self.try_init()
            return found if found is not None else "aborting"

        answer = self.ask(who, "InitProducerId", ask)
        if not isinstance(answer, ProducerIdAndEpoch):
            self.mark()
            answer = self.ask(who, "InitProducerId", self.init)
        assert isinstance(answer, ProducerIdAndEpoch)
        return answer

    def write(self, who: str, producer: ProducerIdAndEpoch, partition: TopicPartition) -> None:
        self.ask(
            f"leader of {partition}",
            f"AddPartitionsToTxn of {who}, {_producer(producer)}",
            lambda: self.add(producer, partition),
        )

    def finish(
        self, who: str, producer: ProducerIdAndEpoch, *, committed: bool = True
    ) -> ProducerIdAndEpoch:
        outcome = "commit" if committed else "abort"
        answer = self.ask(
            who, f"EndTxn, {outcome}, {_producer(producer)}", lambda: self.end(producer, committed)
        )
        return answer if answer is not None else producer

    def mark(self, *partitions: TopicPartition) -> None:
        """Leaders write the markers."""
        markers = self.markers()
        kind = "COMMIT" if markers.committed else "ABORT"
        for partition in sorted(partitions or markers.partitions):
            self.note(
                f"leader of {partition} writes {kind}, {_producer(markers)}, coordinator epoch"
                f" {markers.coordinator_epoch}"
            )
        self.written(*partitions)

    def move(self) -> None:
        """Another broker becomes the coordinator."""
        self.reload()
        pending = [markers.transactional_id for markers in self.shard.pending_markers()]
        self.note(f"coordinator epoch {self.epoch} has loaded the log; to be told: {pending}")


def _producer(found: Any) -> str:
    return f"producer {found.producer_id} epoch {found.producer_epoch}"


def transaction_committed() -> str:
    """A producer commits, and goes on at once with the next epoch; then it aborts."""
    driver = Transactions()
    one = driver.begin("p1")
    driver.tale.tell("the first batch to each partition adds it")
    driver.write("p1", one, P0)
    driver.write("p1", one, P1)
    following = driver.finish("p1", one)
    driver.tale.tell("the outcome stands, and the answer is lost: the retry waits for the markers")
    driver.finish("p1", one)
    driver.mark()
    following = driver.finish("p1", one)
    driver.tale.tell("a batch of the transaction before is late")
    driver.write("p1", one, P0)
    driver.tale.tell("the next transaction is aborted")
    driver.write("p1", following, P0)
    driver.finish("p1", following, committed=False)
    driver.mark()
    return driver.tale.story()


def transaction_fenced() -> str:
    """A second producer comes with the same transactional id while the first one writes."""
    driver = Transactions()
    one = driver.begin("p1")
    driver.write("p1", one, P0)
    driver.tale.tell("p2 begins: what p1 left open is aborted first")
    two = driver.begin("p2")
    driver.tale.tell("p1 wakes up")
    driver.write("p1", one, P1)
    driver.finish("p1", one)
    driver.tale.tell("p2 is not disturbed")
    driver.write("p2", two, P0)
    driver.finish("p2", two)
    driver.mark()
    return driver.tale.story()


def transaction_timed_out() -> str:
    """A producer takes longer than its timeout, and learns of it when it commits."""
    driver = Transactions()
    one = driver.begin("p1")
    driver.advance(1_000)
    driver.write("p1", one, P0)
    driver.advance(TIMEOUT_MS - 1)
    driver.tale.tell("one millisecond is left; then nobody asks, and the coordinator aborts")
    driver.advance(1)
    driver.mark()
    driver.finish("p1", one)
    driver.tale.tell("it may abort, and go on")
    following = driver.finish("p1", one, committed=False)
    driver.write("p1", following, P0)
    return driver.tale.story()


def transaction_coordinator_moves() -> str:
    """The coordinator dies when one of two partitions has its marker."""
    driver = Transactions()
    one = driver.begin("p1")
    driver.write("p1", one, P0)
    driver.write("p1", one, P1)
    driver.finish("p1", one)
    driver.mark(P0)
    driver.tale.tell("the next one does not know which of them has it, and tells both")
    driver.move()
    driver.mark()
    driver.tale.tell("an open transaction keeps the rest of its time")
    following = ProducerIdAndEpoch(one.producer_id, one.producer_epoch + 1)
    driver.write("p1", following, P0)
    driver.advance(TIMEOUT_MS - 10_000)
    driver.move()
    driver.advance(9_999)
    driver.note(f"{TXN} is {driver.status().name}")
    driver.advance(1)
    driver.note(f"{TXN} is {driver.status().name}")
    return driver.tale.story()


class Groups(groups.Driver):
    """A group coordinator that writes down what happens."""

    def __init__(self, **topics: int) -> None:
        self.tale = Tale()
        super().__init__(topics)
        self.names = {found: name for name, found in self.image.topics.ids_by_name.items()}

    def note(self, text: str) -> None:
        self.tale.note(self.now_ms, text)

    def apply(self, result: CoordinatorResult[A], producer_id: int = -1) -> A:
        for key, value in result.records:
            self.note(f"    log: {self._record(key, value)}")
        return super().apply(result, producer_id)

    def _record(self, key: Any, value: Any) -> str:
        kind = type(key).__name__.removesuffix("Key").removeprefix("ConsumerGroup")
        who = getattr(key, "member_id", "")
        if value is None:
            return f"{kind} {who} is deleted"
        match value:
            case g.ConsumerGroupMetadataValue(epoch=epoch):
                return f"{kind}: group epoch {epoch}"
            case g.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch):
                return f"{kind}: epoch {epoch}"
            case g.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics):
                return f"{kind}: {who} shall have {self._partitions(topics)}"
            case g.ConsumerGroupCurrentMemberAssignmentValue():
                told = f"has {self._partitions(value.assigned_partitions)}"
                if value.partitions_pending_revocation:
                    told += f", gives up {self._partitions(value.partitions_pending_revocation)}"
                return f"{kind}: {who} in epoch {value.member_epoch} {told}"
        return f"{kind} {who}".rstrip()

    def _partitions(self, topics: Any) -> str:
        return self.named({topic.topic_id: frozenset(topic.partitions) for topic in topics})

    def named(self, assignment: dict[UUID, frozenset[int]]) -> str:
        found = [f"{self.names[t]}-{n}" for t, ns in assignment.items() for n in sorted(ns)]
        return " ".join(sorted(found)) or "nothing"

    def ask(self, who: str, epoch: int, **told: Any) -> Any:
        """A heartbeat with its answer."""
        owned = told.get("owned")
        text = "" if owned is None else f", owns {self.named(owned)}"
        self.note(f"{who} -> heartbeat, epoch {epoch}{text}")
        try:
            answer = self.heartbeat(who, epoch, **told)
        except ApiError as error:
            self.note(f"{who} <- {code_of(error).name}")
            return None
        assigned = "" if answer.assignment is None else f": {self.named(dict(answer.assignment))}"
        self.note(f"{who} <- epoch {answer.member_epoch}{assigned}")
        return answer

    def enter(self, who: str) -> Any:
        """A member's first heartbeat."""
        return self.ask(
            who, 0, rebalance_timeout_ms=30_000, owned={}, subscribed_topic_names=("t",)
        )


def group_rebalance() -> str:
    """A second member joins, and gets a partition when the first one has given it up."""
    driver = Groups(t=2)
    one = driver.enter("m1")
    driver.tale.tell("m2 joins: it has to wait")
    two = driver.enter("m2")
    driver.tale.tell("m1 learns of it, gives a partition up, and says so")
    one = driver.ask("m1", one.member_epoch, owned=dict(one.assignment))
    one = driver.ask("m1", one.member_epoch, owned=dict(one.assignment))
    driver.tale.tell("now m2 gets it")
    driver.ask("m2", two.member_epoch, owned={})
    return driver.tale.story()


def group_member_lost() -> str:
    """A member is silent until its session is over; it comes back and is told."""
    driver = Groups(t=2)
    one = driver.enter("m1")
    two = driver.enter("m2")
    one = driver.ask("m1", one.member_epoch, owned=dict(one.assignment))
    one = driver.ask("m1", one.member_epoch, owned=dict(one.assignment))
    two = driver.ask("m2", two.member_epoch, owned={})
    driver.tale.tell("m2 is silent; m1 goes on")
    driver.advance(30_000)
    driver.ask("m1", one.member_epoch)
    driver.advance(15_001)
    driver.ask("m1", one.member_epoch)
    driver.tale.tell("m2 is back with its old epoch, then joins again")
    driver.ask("m2", two.member_epoch)
    driver.enter("m2")
    return driver.tale.story()


COORDINATOR_STORIES: dict[str, Callable[[], str]] = {
    story.__name__: story
    for story in (
        transaction_committed,
        transaction_fenced,
        transaction_timed_out,
        transaction_coordinator_moves,
        group_rebalance,
        group_member_lost,
    )
}
