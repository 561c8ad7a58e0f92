"""The consumer's fetch sessions (KIP-227): requests name what changed, answers what is new.

The core asks for partitions, and gets an answer for each of them. In between, a session sends over
its open call only those that the node does not know yet. It adds empty answers for those that the
node does not name, because they have nothing new. What was sent and not answered, or half of it,
ends the session: nothing but an answer tells what the node knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidemark import wire
from tidemark.client.connections import Connections, OpenCall
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.requests import Ask, FetchSettings, Request
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2
from tidemark.wire import FetchPartitionData, FetchResponse

_IDLE_S = 300.0


class _Named(NamedTuple):
    """A partition as the node knows it."""

    topic_id: bytes
    leader_epoch: int
    offset: int
    epoch: int


class KnownPartitions:
    """The partitions that the node of a session reads for it. Pure."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, _Named] = {}

    def __len__(self) -> int:
        return len(self._known)

    def changes(
        self, asked: Mapping[TopicPartition, Ask]
    ) -> tuple[dict[TopicPartition, _Named], list[TopicPartition]]:
        """Returns the partitions that a request has to name, in their order, and those that it has
        the node forget. From now on the node knows what is asked."""
        wanted = {partition: _named(ask) for partition, ask in asked.items()}
        known, self._known = self._known, wanted
        named = {key: found for key, found in wanted.items() if known.get(key) != found}
        return named, [key for key in known if key not in wanted]

    def complete(self, response: FetchResponse, asked: Mapping[TopicPartition, Ask]) -> None:
        """Adds empty answers for asked partitions without news. A node that throttles answers
        none, and needs no addition."""
        quiet = dict.fromkeys(asked)
        for data in response.responses:
            key = TopicPartition(data.topic, data.partition_index)
            quiet.pop(key, None)
            if _is_read_no_more(data):
                self._known.pop(key, None)
        if response.responses or not response.throttle_time_ms:
            response.responses += [FetchPartitionData(*key) for key in quiet]


def _named(ask: Ask) -> _Named:
    target = ask.target
    assert isinstance(target, Position), "a fetch has positions"
    return _Named(ask.topic_id, ask.leader_epoch, target.offset, target.epoch)


def _is_read_no_more(data: FetchPartitionData) -> bool:
    """Whether the node reads the partition again only when it is named again."""
    return bool(
        len(data.payload)
        or data.error_code
        or data.diverging_epoch is not None
        or data.preferred_read_replica is not None
    )


class _Session:
    """An open call, and what its node knows."""

    def __init__(self, call: OpenCall, now_s: float) -> None:
        self.call = call
        self.known = KnownPartitions()
        self.used_s = now_s
        self.is_free = False


class FetchSessions:
    """The sessions of one consumer, by node and rack; belongs to one event loop."""

    def __init__(
        self, connections: Connections, settings: FetchSettings, clock_s: Callable[[], float]
    ) -> None:
        self._connections = connections
        self._settings = settings
        self._clock_s = clock_s
        self._sessions: dict[tuple[str, str], list[_Session]] = {}

    async def fetch(self, address: str, request: Request) -> FetchResponse:
        """Returns an answer for all partitions of the request, unless the node throttles. Raises
        the errors of `OpenCall.ask`."""
        session = self._take(address, request.rack)
        try:
            message = self._message(session.known, request)
            timeout_ms = self._connections.request_timeout_ms + self._settings.fetch_max_wait_ms
            response: FetchResponse = await session.call.ask(
                message.SerializeToString(), wire.decode_fetch_response, timeout_ms
            )
            session.known.complete(response, request.asked)
        except BaseException:
            self._sessions[address, request.rack].remove(session)
            session.call.close()
            raise
        session.is_free, session.used_s = True, self._clock_s()
        return response

    def close(self) -> None:
        """Ends all calls."""
        for sessions in self._sessions.values():
            for session in sessions:
                session.call.close()
        self._sessions.clear()

    def _take(self, address: str, rack: str) -> _Session:
        """The free session whose node knows most, or a new one."""
        now_s = self._clock_s()
        self._end_idle(now_s)
        sessions = self._sessions.setdefault((address, rack), [])
        free = [session for session in sessions if session.is_free]
        if free:
            session = max(free, key=lambda each: len(each.known))
        else:
            session = _Session(self._connections.open_call(address, wire.FETCH_STREAM), now_s)
            sessions.append(session)
        session.is_free = False
        return session

    def _end_idle(self, now_s: float) -> None:
        for sessions in self._sessions.values():
            for session in [each for each in sessions if each.is_free]:
                if not session.call.is_open or now_s - session.used_s > _IDLE_S:
                    sessions.remove(session)
                    session.call.close()

    def _message(self, known: KnownPartitions, request: Request) -> log_pb2.FetchRequest:
        settings = self._settings
        message = log_pb2.FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=settings.isolation_level,
            rack_id=request.rack,
        )
        named, forgotten = known.changes(request.asked)
        for partition, found in named.items():
            message.partitions.add(
                topic=partition.topic,
                topic_id=found.topic_id,
                partition=partition.partition,
                current_leader_epoch=found.leader_epoch,
                fetch_offset=found.offset,
                last_fetched_epoch=found.epoch,
                log_start_offset=-1,
                partition_max_bytes=settings.max_partition_fetch_bytes,
                high_watermark=-1,
            )
        for partition in forgotten:
            message.forgotten.add(topic=partition.topic, partition=partition.partition)
        return message
