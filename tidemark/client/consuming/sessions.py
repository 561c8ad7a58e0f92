"""The consumer's fetch sessions (KIP-227): an open call for each fetch of the core.

A request over the call names what changed since the one before it, an answer what is new. The core
keeps what the node knows (`Request.asked`). After a call that broke, the next one names everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemark import wire
from tidemark.client.connections import Connections, OpenCall
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.requests import FetchSettings, Request
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2
from tidemark.wire import FetchResponse


class _Session(NamedTuple):
    """An open call, and where to."""

    call: OpenCall
    address: str


class FetchSessions:
    """The calls of one consumer, by request id; belongs to one event loop."""

    def __init__(self, connections: Connections, settings: FetchSettings) -> None:
        self._connections = connections
        self._settings = settings
        self._sessions: dict[int, _Session] = {}

    async def fetch(self, address: str, request: Request) -> FetchResponse:
        """Returns the node's news. Raises the errors of `OpenCall.ask`; then the request must not
        be sent again."""
        session = self._sessions.get(request.request_id)
        if session is not None and session.call.is_open and session.address == address:
            message = self._message(request, request.named, request.forgotten)
        else:
            self.end(request.request_id)
            session = _Session(self._connections.open_call(address, wire.FETCH_STREAM), address)
            self._sessions[request.request_id] = session
            message = self._message(request, request.asked, ())
        timeout_ms = self._connections.request_timeout_ms + self._settings.fetch_max_wait_ms
        response: FetchResponse = await session.call.ask(
            message.SerializeToString(), wire.decode_fetch_response, timeout_ms
        )
        return response

    def end(self, request_id: int) -> None:
        """Closes the call of a request, if it has one."""
        session = self._sessions.pop(request_id, None)
        if session is not None:
            session.call.close()

    def close(self) -> None:
        """Ends all calls."""
        for request_id in list(self._sessions):
            self.end(request_id)

    def _message(
        self,
        request: Request,
        named: Iterable[TopicPartition],
        forgotten: Iterable[TopicPartition],
    ) -> log_pb2.FetchRequest:
        settings = self._settings
        message = log_pb2.FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=settings.isolation_level,
            rack_id=request.rack,
        )
        for partition in named:
            ask = request.asked[partition]
            assert isinstance(ask.target, Position), "a fetch has positions"
            message.partitions.add(
                topic=partition.topic,
                topic_id=ask.topic_id,
                partition=partition.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.target.offset,
                last_fetched_epoch=ask.target.epoch,
                log_start_offset=-1,
                partition_max_bytes=settings.max_partition_fetch_bytes,
                high_watermark=-1,
            )
        for partition in forgotten:
            message.forgotten.add(topic=partition.topic, partition=partition.partition)
        return message
