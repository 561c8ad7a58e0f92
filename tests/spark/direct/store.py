"""A store of objects on a loopback port, and a broker whose records are in it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.spark.fake_log import FakeLog, FakePartition, records
from tidemark.records import iter_batches
from tidemark.spark.direct.pieces import Aborted, ObjectPiece
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

TP = TopicPartition("t", 0)


class ObjectServer:
    """Answers GET with a Range. `next_answers` has statuses of the next requests, or "cut", or
    "hang": until `goes_on`, or "trickle": byte after byte, as `drip` lets them go.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.next_answers: list[int | str] = []
        self.signature = "s=1"
        self.ranges: list[tuple[str, int, int]] = []
        self.goes_on = threading.Event()
        self.drip = threading.Semaphore(0)
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with server._lock:
                    server._now += 1
                    server.most_at_once = max(server.most_at_once, server._now)
                try:
                    server.answer(self)
                finally:
                    with server._lock:
                        server._now -= 1

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/{name}?{self.signature}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        content = self.objects.get(parts.path[1:])
        told = self.next_answers.pop(0) if self.next_answers else 206
        if parts.query != self.signature:
            told = 403
        elif content is None:
            told = 404
        if isinstance(told, int) and told != 206:
            handler.send_response(told)
            handler.send_header("Content-Length", "4")
            handler.end_headers()
            handler.wfile.write(b"oops")
            return
        assert content is not None
        body = content[first : last + 1]
        self.ranges.append((parts.path[1:], first, last + 1))
        handler.send_response(206)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if told == "cut":
            body = body[: len(body) // 2]
            handler.close_connection = True
        if told == "hang":
            self.goes_on.wait(30)
        with contextlib.suppress(OSError):
            while told == "trickle" and body and self.drip.acquire(timeout=30):
                handler.wfile.write(body[:1])
                body = body[1:]
            handler.wfile.write(body)


@dataclass
class FakeTier(FakeLog):
    """A broker of topic t whose first batches are in segments of an ObjectServer.

    `asked` has the requests. A segment is (name, first batch, batch behind the last).
    """

    store: ObjectServer
    segments: list[tuple[str, int, int]] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    not_direct: str = ""
    error_code: int = 0
    lease_error: int = 0
    segments_max: int = 2
    served: int = 0

    def __post_init__(self) -> None:
        FakeLog.__init__(self, {TP: FakePartition(), TopicPartition("t", 1): FakePartition()})

    @property
    def log(self) -> FakePartition:
        return self.partitions[TP]

    def tier(self, name: str, batches: int) -> None:
        """Copies so many more batches of partition 0 to one object."""
        first = self.segments[-1][2] if self.segments else 0
        self.segments.append((name, first, first + batches))
        self.store.objects[name] = b"".join(self.log.batches[first : first + batches])

    def pieces(self, start: int, end: int) -> list[ObjectPiece]:
        """The pieces of [start, end): whole segments."""
        found = []
        for name, first, stop in self.segments:
            content = b"".join(self.log.batches[first:stop])
            headers = [header for _, header in iter_batches(content)]
            begin, finish = headers[0].base_offset, headers[-1].next_offset
            if begin < end and start < finish:
                found.append(
                    ObjectPiece(
                        *(self.store.url(name), 0, len(content)),
                        *(max(start, begin), min(end, finish), begin, name.encode()),
                    )
                )
        return found

    def PlanRead(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        start = request.start_offset
        answer = log_pb2.PlanReadResponse(tail_offset=start, not_direct=self.not_direct)
        answer.error_code = self.error_code
        if answer.error_code or self.not_direct:
            return answer
        if request.lease_id:
            answer.lease_ms, answer.error_code = request.lease_ms, self.lease_error
            return answer
        if request.segment_ids:
            for name, *_ in self.segments:
                if name.encode() in request.segment_ids and name in self.store.objects:
                    answer.pieces.add(url=self.store.url(name), segment_id=name.encode())
            return answer
        found = [] if request.partition else self.pieces(start, request.end_offset)
        for piece in found[: self.segments_max]:
            answer.pieces.add(
                url=piece.url,
                start_position=piece.start_position,
                end_position=piece.end_position,
                start_offset=piece.start,
                end_offset=piece.end,
                segment_id=piece.segment_id,
                base_offset=piece.base_offset,
            )
            answer.tail_offset = piece.end
        answer.more = len(found) > self.segments_max
        for one in self.aborted:
            answer.aborted.add(
                producer_id=one.producer_id,
                first_offset=one.first_offset,
                last_offset=one.last_offset,
            )
        return answer

    def _fetch(self, request: Any) -> Any:
        answer = super()._fetch(request)
        self.served += sum(len(found.records) for found in answer.responses)
        return answer

    def options(self, **more: str) -> SourceOptions:
        given = {"bootstrap.servers": self.bootstrap_servers, "subscribe": "t"}
        return parse_options(given | more)


@contextlib.contextmanager
def tiered(batches: int = 20, segments: Sequence[int] = (5, 4, 6)) -> Iterator[FakeTier]:
    """Batches of 10 records, those of the segments in the store and all of them on the broker."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from tidemark.spark.clients import CLIENTS
    from tidemark.v1 import log_pb2_grpc

    store = ObjectServer()
    fake = FakeTier(store)
    for first in range(0, batches * 10, 10):
        fake.log.append(records(first, 10))
    for number, count in enumerate(segments):
        fake.tier(f"segment-{number}", count)
    server = grpc.server(ThreadPoolExecutor(8))
    log_pb2_grpc.add_LogServicer_to_server(fake, server)
    fake.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield fake
    finally:
        CLIENTS.close()
        server.stop(None).wait(10)
        store.close()
