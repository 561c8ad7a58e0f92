"""The work of a task attempt: send its rows, and leave the transaction open for the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidemark.client import Producer
from tidemark.spark.sink.columns import tables
from tidemark.spark.sink.decision import Attempt
from tidemark.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.client.sync import SyncArrowDelivery


def write_attempt(
    options: SinkOptions,
    transactional_id: str,
    batches: Iterable[pa.RecordBatch],
    make: Callable[..., Producer] = Producer,
) -> tuple[Attempt | None, int]:
    """Sends the rows in a transaction of this id.

    Returns the transaction, flushed and open, or None if there are no rows; and the number of rows.
    Raises the producer's errors, of which nothing stays.
    """
    with make(
        options.bootstrap_servers,
        transactional_id=transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        **dict(options.producer),
    ) as producer:
        count = 0
        for topic, table in tables(batches, options.topic):
            if not count:
                producer.init_transactions()
                producer.begin_transaction()
            producer.send_arrow(topic, table)  # a record that is lost fails the next call
            count += table.num_rows
        if not count:
            return None, 0
        identity = producer.hand_over_transaction()
    assert identity is not None
    return Attempt(transactional_id, *identity), count


def write_plainly(
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    make: Callable[..., Producer] = Producer,
) -> int:
    """Sends the rows, and returns their number when all are acknowledged. Raises the producer's
    errors; some rows may be there then, and are there again when the task is repeated.
    """
    with make(options.bootstrap_servers, **dict(options.producer)) as producer:
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
