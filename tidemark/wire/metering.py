"""Counts of the requests that a node answers, by API: their times, their errors, slow ones.

Counters are plain fields that one loop adds to; a scrape reads them. `metered` servers
count every unary call. Produce and fetch, whose calls stay open, count their
requests themselves. Kafka has these numbers as kafka.network:type=RequestMetrics.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tidemark.config import ServerConfig
from tidemark.wire.channel import CLIENT_ID_KEY

logger = logging.getLogger(__name__)

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the histogram's buckets, in s; a last one has all above."""

OWN_METERS = {
    "/tidemark.v1.Log/Produce",
    "/tidemark.v1.Log/Fetch",
    "/tidemark.v1.Replication/Fetch",
}
"""Unary methods that count their requests themselves."""

_PACKAGE = "/tidemark.v1."
_UNFORESEEN = -1  # the code of a call that failed
_ERROR_CODE = "error_code"


class Timing:
    """Times of one request, in s."""

    # Defaults of the class: most requests set none of them.
    queue_s = 0.0
    """The wait for memory, before the work begins."""
    remote_s = 0.0
    """Waits for other nodes, or for news."""
    waits_since_s = 0.0
    """When such a wait began that has not ended; 0: none."""
    allowed_s = 0.0
    """The wait that the client asked for: the request is no slower by it."""

    def __init__(self, began_s: float, context: Any) -> None:
        """`context` is that of the gRPC call."""
        self.began_s = began_s
        self.context = context

    def queued_until(self, now_s: float) -> None:
        """Ends the wait for memory."""
        self.queue_s, self.waits_since_s = now_s - self.began_s, 0.0


class ApiMeter:
    """The requests of one API."""

    __slots__ = (
        "_meters",
        "api",
        "counts",
        "errors",
        "queue_s",
        "remote_s",
        "spent_s",
        "throttle_s",
    )

    def __init__(self, api: str, meters: RequestMeters) -> None:
        self.api = api
        self._meters = meters
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.errors: dict[int, int] = {}
        self.spent_s = self.queue_s = self.remote_s = self.throttle_s = 0.0

    def begin(self, context: Any) -> Timing:
        """The times of a request that begins now."""
        return Timing(self._meters.clock_s(), context)

    def fail(self, code: int) -> None:
        """Counts an error in an answer."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def fail_each(self, answers: Iterable[Any]) -> None:
        """Counts the errors of an answer's parts."""
        for answer in answers:
            if answer.error_code:
                self.fail(int(answer.error_code))

    @contextmanager
    def fetching(self, context: Any) -> Iterator[Timing]:
        """Counts a fetch, whose waits are those that its client asked for."""
        timing = self.begin(context)
        try:
            yield timing
        finally:
            timing.allowed_s = timing.remote_s
            self.end(timing)

    def end(self, timing: Timing) -> None:
        """Counts a request that is answered now."""
        meters, began_s = self._meters, timing.began_s
        now_s = meters.clock_s()
        spent_s = now_s - began_s
        self.counts[bisect_left(BOUNDS_S, spent_s)] += 1
        self.spent_s += spent_s
        if timing.waits_since_s:
            timing.remote_s += now_s - timing.waits_since_s
        if timing.remote_s or timing.queue_s:
            self.remote_s += timing.remote_s
            self.queue_s += timing.queue_s
        if spent_s - timing.allowed_s > meters.slow_s:
            self._tell(spent_s, timing)

    def _tell(self, spent_s: float, timing: Timing) -> None:
        logger.warning(
            "slow request: %s of client %r at %s took %.0f ms"
            " (queue %.0f, local %.0f, remote %.0f)",
            self.api,
            _client_id(timing.context),
            timing.context.peer(),
            spent_s * 1000,
            timing.queue_s * 1000,
            (spent_s - timing.queue_s - timing.remote_s) * 1000,
            timing.remote_s * 1000,
        )


class RequestMeters:
    """The meters of one node."""

    def __init__(self, slow_ms: int = 0, clock_s: Callable[[], float] = time.perf_counter) -> None:
        """Requests that take longer than `slow_ms` are logged; 0: none."""
        self.clock_s = clock_s
        self.set_slow_ms(slow_ms)
        self.by_api: dict[str, ApiMeter] = {}
        self.sessions = {"consumer": 0, "follower": 0}
        """Fetch sessions that are open, by their side."""
        self.produce = self.of("Produce")
        self.consumer_fetch = self.of("FetchConsumer")
        self.follower_fetch = self.of("FetchFollower")

    def set_slow_ms(self, slow_ms: int) -> None:
        """Sets the time from which on requests are logged; 0: none."""
        self.slow_s = slow_ms / 1000 if slow_ms else float("inf")

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies settings that were altered while the node runs."""
        self.set_slow_ms(config.observation.slow_request_threshold_ms)

    def of(self, api: str) -> ApiMeter:
        """The meter of an API by Kafka's name for it, or by the RPC's."""
        meter = self.by_api.get(api)
        if meter is None:
            meter = self.by_api[api] = ApiMeter(api, self)
        return meter


def metered(server: grpc.aio.Server, meters: RequestMeters) -> grpc.aio.Server:
    """The server for adding services, whose unary calls are counted."""
    counted: Any = _MeteredServer(server, meters)
    return counted  # type: ignore[no-any-return]


class _MeteredServer:
    """Adds services to a gRPC server."""

    def __init__(self, server: Any, meters: RequestMeters) -> None:
        self._server = server
        self._meters = meters

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """As of `grpc.aio.Server`."""
        counted = tuple(_Generic(handler, self._counted) for handler in handlers)
        self._server.add_generic_rpc_handlers(counted)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """As of `grpc.aio.Server`."""
        counted = {n: self._counted(f"/{service}/{n}", each) for n, each in handlers.items()}
        self._server.add_registered_method_handlers(service, counted)

    def _counted(self, path: str, handler: Any) -> Any:
        is_unary = not (handler.request_streaming or handler.response_streaming)
        if not is_unary or path in OWN_METERS or not path.startswith(_PACKAGE):
            return handler
        service, _, name = path.removeprefix(_PACKAGE).partition("/")
        meter = self._meters.of(f"Raft{name}" if service == "Raft" else name)
        return grpc.unary_unary_rpc_method_handler(
            _counting(meter, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class _Generic(grpc.GenericRpcHandler):  # type: ignore[misc, type-arg]
    """A generic handler whose calls are counted."""

    def __init__(self, inner: Any, counted: Callable[[str, Any], Any]) -> None:
        self._inner = inner
        self._counted = counted
        self._known: dict[str, Any] = {}

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        known = self._known.get(path)
        if known is None:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            known = self._known[path] = self._counted(path, handler)
        return known


def _counting(meter: ApiMeter, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def call(request: Any, context: Any) -> Any:
        timing = meter.begin(context)
        try:
            answer = await method(request, context)
            for code in error_codes(answer):
                meter.fail(code)
        except Exception:
            meter.fail(_UNFORESEEN)
            raise
        finally:
            meter.end(timing)
        return answer

    return call


def error_codes(answer: Any) -> Iterator[int]:
    """The errors that an answer tells, those of its parts included; 0 is none of them."""
    if isinstance(answer, Message):
        yield from _codes(answer, _parts_with_codes(answer.DESCRIPTOR))


def _codes(message: Any, parts: tuple[bool, tuple[Any, ...]]) -> Iterator[int]:
    has_code, fields = parts
    if has_code and (code := getattr(message, _ERROR_CODE)):
        yield int(code)
    for name, inner in fields:
        for item in getattr(message, name):
            yield from _codes(item, inner)


@cache
def _parts_with_codes(kind: Descriptor) -> tuple[bool, tuple[Any, ...]]:
    """Whether messages of a kind have an error code, and their lists whose items do."""
    fields = []
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.is_repeated:
            inner = _parts_with_codes(field.message_type)
            if inner != (False, ()):
                fields.append((field.name, inner))
    return _ERROR_CODE in kind.fields_by_name, tuple(fields)


def _client_id(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_KEY:
            return unquote(value, errors="replace")
    return ""
