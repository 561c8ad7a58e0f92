"""A network in memory with the interface of grpc.aio: channels, calls, servers.

It carries the bytes that gRPC would carry, to the handlers that gRPC would call, so serializers,
codecs and services are those of production. A message takes time. Messages of one call keep their
order and no others. A link that is cut, one way or both, keeps its messages and delivers them after
the heal, as TCP does. Such a message is late: its caller has long given up.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import Any, NamedTuple

import grpc
import grpc.aio

from tidemark.testing.loop import Process, SimLoop
from tidemark.testing.pipe import END, Pipe

_KEEPALIVE_S = 40.0
"""After this time a server notices that its peer lost power."""
_STEP_S = 1e-6


class _Held(NamedTuple):
    """A message that waits for a cut link."""

    source: Process
    target: Process
    deliver: Callable[[], None]
    context: Context
    order: _Order | None
    lost: Callable[[], None] | None
    path: str


class _Order:
    """Time of the last arrival of one direction of one call, in s."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = 0.0


def answers_of(path: str) -> str:
    """Name of the answers of a method, for `SimNetwork.cut`."""
    return path + " answers"


class SimNetwork:
    """The links between all processes, by node id."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.servers: dict[str, SimServer] = {}
        self.delay_ms_max = 2.0
        self.late_rate = 0.0
        """Share of messages that are late by up to `late_ms_max`."""
        self.break_rate = 0.0
        """Share of requests whose connection breaks for the caller, while they arrive later."""
        self.late_ms_max = 3_000
        self.change_answer: Callable[[_Call, bytes], bytes] = lambda call, answer: answer
        """Damages the answer of a unary call on its way."""
        self.on_handler_error: Callable[[Exception], None] = lambda error: None
        self.seen: Counter[str] = Counter()
        # One way and one method, or all (""): (source, target, path), with its depth.
        self._cut: dict[tuple[int, int, str], int] = {}
        self._held: list[_Held] = []

    def heal(self) -> None:
        """Ends cuts, late messages and broken connections."""
        self.late_rate = self.break_rate = 0.0
        self.delay_ms_max = 2.0
        self._cut.clear()
        self._send_again()

    def cut(self, ways: list[tuple[int, int]], path: str = "") -> None:
        """Cuts links one way; the messages wait. With the path of a method only its requests wait,
        as on one connection of several; `answers_of` a path stands for its answers.
        """
        for way in ways:
            key = (*way, path)
            self._cut[key] = self._cut.get(key, 0) + 1

    def uncut(self, ways: list[tuple[int, int]], path: str = "") -> None:
        """Undoes one `cut` of each; what waited there arrives now."""
        for way in ways:
            key = (*way, path)
            depth = self._cut.pop(key, 0)
            if depth > 1:
                self._cut[key] = depth - 1
        self._send_again()

    def _send_again(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self.send(*message)

    def is_cut(self, source: int, target: int, path: str = "") -> bool:
        return (source, target, "") in self._cut or (source, target, path) in self._cut

    def send(
        self,
        source: Process,
        target: Process,
        deliver: Callable[[], None],
        context: Context,
        order: _Order | None = None,
        lost: Callable[[], None] | None = None,
        path: str = "",
    ) -> None:
        """Calls `deliver` at the target after a while, or `lost` if the target is dead by then."""
        if not source.alive:
            return
        if self._cut and self.is_cut(source.node_id, target.node_id, path):
            self.seen["message held by a cut"] += 1
            self._held.append(_Held(source, target, deliver, context, order, lost, path))
            return
        rng = self.rng
        delay_ms = 0.1 + rng.random() * self.delay_ms_max
        if self.late_rate and rng.random() < self.late_rate:
            self.seen["message late"] += 1
            delay_ms += rng.random() * self.late_ms_max
        when_s = self.loop.time() + delay_ms / 1000
        if order is not None:
            when_s = order.last_s = max(when_s, order.last_s + _STEP_S)

        def arrive() -> None:
            if target.alive:
                deliver()
            elif lost is not None:
                lost()

        self.loop.call_at(when_s, arrive, context=context)

    def process_ended(self, process: Process, *, silent: bool) -> None:
        """Ends the calls of a dead process: at once for its peers, or unnoticed for a while."""
        for address in [a for a, s in self.servers.items() if s.process is process]:
            self.servers.pop(address).lose_calls(silent=silent)
        for server in list(self.servers.values()):
            server.lose_caller(process, silent=silent)


class ProcessNetwork:
    """`tidemark.wire.network.Network` of one process."""

    def __init__(self, network: SimNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    def channel(self, address: str) -> SimChannel:
        return SimChannel(self._network, self._process, address)

    def server(self) -> SimServer:
        return SimServer(self._network, self._process)


def _status(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


class _Aborted(Exception):
    """A handler ended its call by `context.abort`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class SimServer:
    """The interface of grpc.aio.Server that nodes use."""

    def __init__(self, network: SimNetwork, process: Process) -> None:
        self.network = network
        self.process = process
        self._generic: list[Any] = []
        self._ports: list[str] = []
        self._handlers: dict[str, Any] = {}
        self.calls: dict[_Call, asyncio.Task[None]] = {}
        self._stopping = False

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Adds nothing: the generic handlers of the service have them."""

    def add_insecure_port(self, address: str) -> int:
        known = self.network.servers.get(address)
        if known is not None and known.process.alive:
            return 0
        self._ports.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        for address in self._ports:
            self.network.servers[address] = self

    async def stop(self, grace: float | None) -> None:
        """Refuses new calls, and ends those under way after `grace` seconds."""
        self._stopping = True
        for address in self._ports:
            if self.network.servers.get(address) is self:
                del self.network.servers[address]
        if self.calls and grace:
            await asyncio.wait(list(self.calls.values()), timeout=grace)
        for call, task in list(self.calls.items()):
            call.refuse(grpc.StatusCode.UNAVAILABLE, "the server stops")
            task.cancel()

    def handler(self, path: str) -> Any:
        found = self._handlers.get(path)
        if found is None:
            details = _Details(path)
            for generic in self._generic:
                found = generic.service(details)
                if found is not None:
                    self._handlers[path] = found
                    break
        return found

    def lose_calls(self, *, silent: bool) -> None:
        """Handles the end of this process: its callers notice, unless it was `silent`."""
        for call in list(self.calls):
            if not silent:
                call.reset()
        self.calls.clear()

    def lose_caller(self, process: Process, *, silent: bool) -> None:
        """Handles the end of a caller's process."""
        loop, delay_s = self.network.loop, _KEEPALIVE_S if silent else 0.001
        for call, task in list(self.calls.items()):
            if call.source is process:
                loop.call_later(delay_s, task.cancel, context=self.process.context)


class _Details(NamedTuple):
    """`grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[Any, ...] = ()


class _Call:
    """One call between two processes; `path` names its method."""

    def __init__(self, channel: SimChannel, path: str, metadata: Any) -> None:
        self.network = channel.network
        self.source = channel.process
        self.address = channel.address
        self.path = path
        self.metadata = tuple(metadata or ())
        self.deadline_s: float | None = None
        self.server: SimServer | None = None
        self.task: asyncio.Task[None] | None = None
        self.done_callbacks: list[Callable[[Any], None]] = []
        self._there = _Order()
        self._back = _Order()

    def to_server(self, deliver: Callable[[], None]) -> None:
        """Sends something to the process that serves the address now, or to no one."""
        network = self.network
        server = self.server or network.servers.get(self.address)
        if server is None:
            refused = self.source.context
            network.loop.call_later(0.001, self._refused, context=refused)
        else:
            target = server.process
            # Without the call's beginning nothing else of it can arrive.
            lost = self.reset if self.server is None else None
            context, order = target.context, self._there
            network.send(self.source, target, deliver, context, order, lost, self.path)

    def to_caller(self, deliver: Callable[[], None]) -> None:
        assert self.server is not None
        process = self.server.process
        context, order = self.source.context, self._back
        path = answers_of(self.path)
        self.network.send(process, self.source, deliver, context, order, path=path)

    def _refused(self) -> None:
        self.fail(grpc.StatusCode.UNAVAILABLE, f"{self.address}: connection refused")

    def arrive(self) -> None:
        """Begins the call at the server."""
        server = self.network.servers.get(self.address)
        if server is None:  # it was closed meanwhile
            loop, context = self.network.loop, self.source.context
            loop.call_later(0.001, self._refused, context=context)
            return
        self.server = server
        handler = server.handler(self.path)
        if handler is None:
            self.refuse(grpc.StatusCode.UNIMPLEMENTED, f"no method {self.path}")
            return
        self.task = server.process.spawn(self.serve(handler))
        server.calls[self] = self.task
        self.task.add_done_callback(lambda _: server.calls.pop(self, None))

    async def serve(self, handler: Any) -> None:
        """Runs the handler, and sends how it ended."""
        try:
            await self.handle(handler)
        except _Aborted as aborted:
            self.refuse(aborted.code, str(aborted))
        except asyncio.CancelledError:
            self.refuse(grpc.StatusCode.CANCELLED, "the server cancelled the call")
            raise
        except Exception as error:
            self.network.seen["a handler raised"] += 1
            self.network.on_handler_error(error)
            text = f"Unexpected {type(error)}: {error}"
            self.refuse(grpc.StatusCode.UNKNOWN, text)
        finally:
            for callback in self.done_callbacks:
                callback(self)

    async def handle(self, handler: Any) -> None:
        raise NotImplementedError

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call at its caller."""
        raise NotImplementedError

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call from the server's side."""
        self.to_caller(lambda: self.fail(code, details))

    def reset(self) -> None:
        """Ends the call at its caller soon: the peer's process is gone."""
        loop, delay_s = self.network.loop, 0.001 + self.network.rng.random() * 0.01
        unavailable = grpc.StatusCode.UNAVAILABLE
        context = self.source.context
        loop.call_later(delay_s, self.fail, unavailable, "connection reset", context=context)

    def cancel_there(self) -> None:
        """Tells the server that the caller gave up."""

        def cancel() -> None:
            if self.task is not None:
                self.task.cancel()

        if self.server is not None or self.address in self.network.servers:
            self.to_server(cancel)

    # The interface of `grpc.aio.ServicerContext` that handlers use.

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        raise _Aborted(code, details)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.done_callbacks.append(callback)

    def invocation_metadata(self) -> tuple[Any, ...]:
        return self.metadata

    def peer(self) -> str:
        """The connection that the call came by."""
        return f"sim:{self.source.name}"

    def time_remaining(self) -> float | None:
        if self.deadline_s is None:
            return None
        return max(0.0, self.deadline_s - self.network.loop.time())


class _UnaryCall(_Call):
    """One request, one answer."""

    def __init__(
        self,
        channel: SimChannel,
        method: _UnaryMethod,
        request: Any,
        timeout_s: float | None,
        metadata: Any,
    ) -> None:
        super().__init__(channel, method.path, metadata)
        loop = self.network.loop
        self._decode = method.decode
        self._payload = bytes(request) if method.encode is None else method.encode(request)
        self.outcome: asyncio.Future[Any] = loop.create_future()
        self._limit: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            self.deadline_s = loop.time() + timeout_s
            self._limit = loop.call_later(timeout_s, self._expire)
        self.outcome.add_done_callback(self._ended)
        self.to_server(self.arrive)
        rng = self.network.rng
        if self.network.break_rate and rng.random() < self.network.break_rate:
            self.network.seen["connection broken"] += 1
            self.reset()

    def _expire(self) -> None:
        self.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.cancel_there()

    def _ended(self, outcome: asyncio.Future[Any]) -> None:
        if self._limit is not None:
            self._limit.cancel()
        if outcome.cancelled():
            self.cancel_there()
        else:
            outcome.exception()  # retrieved: nobody may wait for it

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(_status(code, details))

    async def handle(self, handler: Any) -> None:
        payload, decode, encode = self._payload, *_codecs(handler)
        answer = await handler.unary_unary(payload if decode is None else decode(payload), self)
        data = answer if encode is None else encode(answer)
        data = self.network.change_answer(self, data)
        self.to_caller(lambda: self._answered(data))

    def _answered(self, data: bytes) -> None:
        if not self.outcome.done():
            self.outcome.set_result(data if self._decode is None else self._decode(data))


def _codecs(handler: Any) -> tuple[Any, Any]:
    return handler.request_deserializer, handler.response_serializer


class StreamCall(_Call):
    """The caller's half of a call that stays open."""

    def __init__(
        self, channel: SimChannel, path: str, metadata: Any, encode: Any, decode: Any
    ) -> None:
        super().__init__(channel, path, metadata)
        loop = self.network.loop
        self._encode = encode
        self._decode = decode
        self._answers = Pipe(loop)
        self._requests = Pipe(loop)
        self._ended = False
        self.to_server(self.arrive)

    def done(self) -> bool:
        return self._ended

    async def write(self, message: Any) -> None:
        if self._ended:
            raise asyncio.InvalidStateError("the call has ended")
        if self.server is not None and not self.server.process.alive:
            if self.address in self.network.servers:  # another process: it knows no such call
                self.reset()
            return
        data = message if self._encode is None else self._encode(message)
        self.to_server(lambda: self._requests.put(data))

    async def done_writing(self) -> None:
        if not self._ended:
            self.to_server(lambda: self._requests.put(END))

    async def read(self) -> Any:
        answer = await self._answers.get()
        return answer if answer is END or self._decode is None else self._decode(answer)

    def cancel(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self._answers.fail(asyncio.CancelledError())
        self.cancel_there()
        return True

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        if not self._ended:
            self._ended = True
            self._answers.fail(_status(code, details))

    async def handle(self, handler: Any) -> None:
        decode, encode = _codecs(handler)
        await handler.stream_stream(None, _StreamContext(self, self._requests, decode, encode))
        self.to_caller(self._finish)

    def _finish(self) -> None:
        self._ended = True
        self._answers.put(END)


class _StreamContext:
    """The server's half of a call that stays open."""

    def __init__(self, call: StreamCall, requests: Pipe, decode: Any, encode: Any) -> None:
        self._call = call
        self._requests = requests
        self._decode = decode
        self._encode = encode
        self.abort = call.abort
        self.invocation_metadata = call.invocation_metadata
        self.peer = call.peer
        self.time_remaining = call.time_remaining

    async def read(self) -> Any:
        message = await self._requests.get()
        return message if message is END or self._decode is None else self._decode(message)

    async def write(self, answer: Any) -> None:
        call, data = self._call, answer if self._encode is None else self._encode(answer)
        data = call.network.change_answer(call, data)
        call.to_caller(lambda: call._answers.put(data))


class _UnaryMethod:
    """The result of `channel.unary_unary`."""

    def __init__(self, channel: SimChannel, path: str, encode: Any, decode: Any) -> None:
        self._channel = channel
        self.path = path
        self.encode = encode
        self.decode = decode

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None
    ) -> asyncio.Future[Any]:
        return self._channel.begin(
            lambda: _UnaryCall(self._channel, self, request, timeout, metadata)
        )


class SimChannel:
    """The interface of grpc.aio.Channel that clients and nodes use."""

    def __init__(self, network: SimNetwork, process: Process, address: str) -> None:
        self.network = network
        self.process = process
        self.address = address
        self._unary: dict[asyncio.Future[Any], None] = {}
        self._streams: dict[StreamCall, None] = {}
        self._closed = False

    def unary_unary(
        self,
        path: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_options: Any,
    ) -> _UnaryMethod:
        return _UnaryMethod(self, path, request_serializer, response_deserializer)

    def stream_stream(
        self,
        path: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_options: Any,
    ) -> Callable[..., StreamCall]:
        def begin(timeout: float | None = None, metadata: Any = None) -> StreamCall:
            self._check()
            for ended in [stream for stream in self._streams if stream.done()]:
                del self._streams[ended]
            call = StreamCall(self, path, metadata, request_serializer, response_deserializer)
            self._streams[call] = None
            return call

        return begin

    def begin(self, make: Callable[[], _UnaryCall]) -> asyncio.Future[Any]:
        """Starts a unary call and returns its outcome."""
        self._check()
        outcome = make().outcome
        self._unary[outcome] = None
        outcome.add_done_callback(lambda ended: self._unary.pop(ended, None))
        return outcome

    def _check(self) -> None:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")

    async def close(self, grace: float | None = None) -> None:
        """Cancels the calls that are left after `grace` seconds."""
        self._closed = True
        if grace and self._unary:
            await asyncio.wait(list(self._unary), timeout=grace)
        for outcome in list(self._unary):
            outcome.cancel()
        for stream in list(self._streams):
            stream.cancel()
        self._streams.clear()
