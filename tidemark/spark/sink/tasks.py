"""The work of a task attempt: send its rows, and leave the transaction open for the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidemark.client import Producer
from tidemark.errors import InvalidTxnStateError
from tidemark.spark.sink.columns import tables
from tidemark.spark.sink.decision import Attempt, SinkError
from tidemark.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.client.sync import SyncArrowDelivery


def write_attempt(
    options: SinkOptions,
    ids: Iterable[str],
    batches: Iterable[pa.RecordBatch],
    make: Callable[..., Producer] = Producer,
) -> tuple[Attempt | None, int]:
    """Sends the rows in a transaction of the first of these ids that is free.

    Returns the transaction, flushed and open, or None if there are no rows; and the number of rows.
    Raises SinkError if no id is free, and the producer's errors, of which nothing stays.
    """
    with ExitStack() as stack:
        taken: tuple[str, Producer] | None = None
        count = 0
        for topic, table in tables(batches, options.topic):
            if taken is None:
                taken = _take(options, ids, make)
                stack.enter_context(taken[1])
                taken[1].begin_transaction()
            taken[1].send_arrow(topic, table)  # a record that is lost fails the next call
            count += table.num_rows
        if taken is None:
            return None, 0
        identity = taken[1].hand_over_transaction()
    assert identity is not None
    return Attempt(taken[0], *identity), count


def _take(
    options: SinkOptions, ids: Iterable[str], make: Callable[..., Producer]
) -> tuple[str, Producer]:
    """Takes an id without aborting a transaction: that of another attempt may be decided."""
    problem: InvalidTxnStateError | None = None
    for transactional_id in ids:
        producer = make(
            options.bootstrap_servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            security=options.security,
            **dict(options.producer),
        )
        try:
            producer.init_transactions(keep_open=True)
        except InvalidTxnStateError as error:
            problem = error
            producer.close()
        except BaseException:
            producer.close()
            raise
        else:
            return transactional_id, producer
    raise SinkError(
        f"all transactional ids of this partition are in use ({problem}): do jobs write to the same"
        " sinkId at once? Otherwise `tidemark transactions recover-sink` ends what they left"
    )


def write_plainly(
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    make: Callable[..., Producer] = Producer,
) -> int:
    """Sends the rows, and returns their number when all are acknowledged. Raises the producer's
    errors; some rows may be there then, and are there again when the task is repeated.
    """
    settings = dict(options.producer) | {"security": options.security}
    with make(options.bootstrap_servers, **settings) as producer:
        under_way: deque[SyncArrowDelivery] = deque()
        count = 0
        for topic, table in tables(batches, options.topic):
            under_way.append(producer.send_arrow(topic, table))
            count += table.num_rows
            while under_way and under_way[0].done():
                under_way.popleft().result()
        for delivery in under_way:
            delivery.result()
    return count
