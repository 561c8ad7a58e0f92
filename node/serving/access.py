"""Checks what a client may produce to and fetch from, where its messages are decoded.

Each partition that is denied has an error in the answer, as in Kafka; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from node.serving.fetch_session import FetchPartition
from node.serving.produce import ProduceResult, result_of
from quorum.access.guard import Access
from quorum.access.verdicts import denial
from tidemark.errors import ApiError
from tidemark.security import acls
from tidemark.wire import (
    FetchPartitionData,
    FetchResponse,
    ProduceRequest,
    encode_fetch_response,
)
from tidemark.wire.exchange import Answer


def deny_produce(access: Access, request: ProduceRequest) -> list[ProduceResult]:
    """Takes what may not be written out of a request; returns the answers about it."""
    if not access.is_checked:
        return []
    transactional_id = request.transactional_id
    of_all: ApiError | None = None
    if transactional_id and not access.allows(acls.WRITE, acls.TRANSACTIONAL_ID, transactional_id):
        of_all = denial(acls.TRANSACTIONAL_ID, transactional_id)
    denied, left = [], []
    for item in request.partition_data:
        error = of_all or _denial(access, acls.WRITE, item.topic, item.topic_id)
        if error is None:
            left.append(item)
            continue
        result = result_of(item)
        result.error_code, result.error_message = error.code, str(error)
        denied.append(result)
    request.partition_data = left
    return denied


def deny_fetch(
    access: Access, partitions: Sequence[FetchPartition]
) -> tuple[list[FetchPartition], bytes]:
    """The partitions that may be read, and the answers about the others, encoded."""
    if not access.is_checked:
        return list(partitions), b""
    allowed, denied = [], []
    for item in partitions:
        error = _denial(access, acls.READ, item.topic, item.topic_id)
        if error is None:
            allowed.append(item)
            continue
        denied.append(
            FetchPartitionData(
                item.topic,
                item.partition,
                error_code=int(error.code),
                error_message=str(error),
                topic_id=b"" if item.topic else item.topic_id,
            )
        )
    return allowed, encode_fetch_response(FetchResponse(denied)) if denied else b""


def continued(answer: Answer, more: Callable[[], bytes]) -> bytes | asyncio.Future[bytes]:
    """The answer with further fields, as they are when it is made: a message may be continued by
    its fields.
    """
    if isinstance(answer, bytes):
        return answer + more()
    inner = asyncio.ensure_future(answer)
    outer: asyncio.Future[bytes] = inner.get_loop().create_future()

    def end(_: asyncio.Future[bytes]) -> None:
        if outer.done():
            return
        if inner.cancelled():
            outer.cancel()
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result() + more())

    inner.add_done_callback(end)
    outer.add_done_callback(lambda _: inner.cancel())
    return outer


def _denial(access: Access, operation: int, topic: str, topic_id: bytes) -> ApiError | None:
    """None: allowed, or no such topic, which the handler tells."""
    name = topic or access.topic_name(topic_id)
    if name is None or access.allows(operation, acls.TOPIC, name):
        return None
    return denial(acls.TOPIC, name)
