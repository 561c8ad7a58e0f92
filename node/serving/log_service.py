"""The gRPC services `Log` and `Replication`: from wire messages to the handlers and back.

Produce and Fetch use the hand-made codec of `tidemark.wire` in generic handlers. Their payloads
stay byte slices of the request or of the log; no protobuf object holds them. All other calls are
small and use protobuf. Errors are codes per partition; a call fails only if the node cannot serve
at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc

from node.serving.access import continued, deny_fetch, deny_produce
from node.serving.answer_memory import AnswerMemory, AnswersOfCall
from node.serving.fetch_session import (
    ConsumerSession,
    FetchContext,
    FetchingReplica,
    FetchSession,
    SessionlessFetch,
)
from node.serving.fetching import FetchHandler, FetchParams
from node.serving.log_messages import (
    Redirecting,
    epoch_ends,
    forgotten_key,
    known,
    leaders_of,
    produce_response,
    wanted,
)
from node.serving.metadata_answers import metadata_response
from node.serving.offsets import OffsetFinder
from node.serving.plain_records import to_plain
from node.serving.produce import ProduceHandler, ProduceResult, result_of
from node.serving.producer_ids import ProducerIdManager
from node.serving.read_plans import ReadPlans
from node.serving.record_deletion import RecordDeleter
from node.serving.request_memory import RequestMemory
from node.serving.requests import check_count, parse, parsed
from node.serving.throttling import Throttling, throttle_field
from quorum.access.guard import access_of_call
from quorum.services.admin_service import ImageSource
from tidemark import wire
from tidemark.errors import ApiError, ErrorCode, UnsupportedVersionError, code_of, set_error
from tidemark.quotas.entities import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from tidemark.types import TopicPartition
from tidemark.v1 import common_pb2
from tidemark.v1 import log_pb2 as pb
from tidemark.wire.exchange import Answer, answer_in_order, answer_until_next
from tidemark.wire.metering import RequestMeters, Timing

logger = logging.getLogger(__name__)

Context = Any
_FETCH_WAIT_MS_MAX = 60_000


InitTransactional = Callable[[pb.InitProducerIdRequest], Awaitable[pb.InitProducerIdResponse]]
"""Answers an InitProducerId that names a transactional id. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class RequestHandlers:
    """The handlers of a broker's requests, shared by all of its listeners."""

    produce: ProduceHandler
    fetch: FetchHandler
    offsets: OffsetFinder
    deletion: RecordDeleter
    producer_ids: ProducerIdManager
    throttling: Throttling = field(default_factory=Throttling)
    is_opening: Callable[[TopicPartition], bool] = lambda _: False
    init_transactional: InitTransactional | None = None
    plans: ReadPlans | None = None
    meters: RequestMeters = field(default_factory=RequestMeters)


class LogService:
    """Serves both services on one listener of a broker."""

    def __init__(
        self,
        handlers: RequestHandlers,
        images: ImageSource,
        memory: RequestMemory,
        answers: AnswerMemory,
        cluster_id: str,
        controller_id: Callable[[], int | None],
        listener: str,
        request_timeout_ms: int,
        fetch_max_bytes: int,
    ) -> None:
        self._handlers = handlers
        self._throttling = handlers.throttling
        self._meters = handlers.meters
        self._images = images
        self._memory = memory
        self._answers = answers
        self._cluster_id = cluster_id
        self._controller_id = controller_id
        self._listener = listener
        self._request_timeout_ms = request_timeout_ms
        self._fetch_max_bytes = fetch_max_bytes
        self._open_calls: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[bytes]] = set()  # produces that wait for memory

    def handlers(self, serves_nodes: bool) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
        """Handlers for `grpc.aio.Server.add_generic_rpc_handlers`, of Log alone or of both."""
        both = (
            grpc.method_handlers_generic_handler(
                "tidemark.v1.Log",
                {
                    "Produce": grpc.unary_unary_rpc_method_handler(self.produce),
                    "ProduceStream": grpc.stream_stream_rpc_method_handler(self.produce_stream),
                    "Fetch": grpc.unary_unary_rpc_method_handler(
                        parsed(self.fetch, pb.FetchRequest)
                    ),
                    "FetchStream": grpc.stream_stream_rpc_method_handler(self.fetch_stream),
                    "ListOffsets": _unary(self._charged(self.list_offsets), pb.ListOffsetsRequest),
                    "Metadata": _unary(self._charged(self.metadata), pb.MetadataRequest),
                    "DeleteRecords": _unary(
                        self._charged(self.delete_records), pb.DeleteRecordsRequest
                    ),
                    "InitProducerId": _unary(
                        self._charged(self.init_producer_id), pb.InitProducerIdRequest
                    ),
                    "PlanRead": _unary(self._charged(self.plan_read), pb.PlanReadRequest),
                },
            ),
            grpc.method_handlers_generic_handler(
                "tidemark.v1.Replication",
                {
                    "Fetch": grpc.unary_unary_rpc_method_handler(
                        self.replica_fetch,
                        request_deserializer=pb.ReplicaFetchRequest.FromString,
                    ),
                    "FetchStream": grpc.stream_stream_rpc_method_handler(
                        self.replica_fetch_stream,
                        request_deserializer=pb.ReplicaFetchRequest.FromString,
                    ),
                    "OffsetForLeaderEpoch": _unary(
                        self.offset_for_leader_epoch, pb.OffsetForLeaderEpochRequest
                    ),
                },
            ),
        )
        return both if serves_nodes else both[:1]

    # --- produce and fetch ---------------------------------------------------------------------

    async def produce(self, payload: bytes, context: Context) -> bytes:
        """Appends, then waits as `acks` says; bounded by the memory of requests, which gRPC keeps
        until the end of a unary call."""
        await self._throttling.until_unmuted(context)
        answer = self._begin_produce(payload, context, kept=True)
        return answer if isinstance(answer, bytes) else await answer

    async def produce_stream(self, requests: Any, context: Context) -> None:
        """Answers produce requests of one client in their order."""
        work = answer_in_order(
            context,
            lambda payload: self._begin_produce(payload, context),
            partial(self._throttling.muted_s, context),
        )
        await self._until_stopped(context, work)

    def _begin_produce(self, payload: bytes, context: Context, *, kept: bool = False) -> Answer:
        """`_produce`; where quotas are set, the client is charged."""
        timing = self._meters.produce.begin(context)
        if not self._throttling.is_active:
            return self._produce(payload, context, kept, timing)
        charge = self._throttling.begin(context)
        charge.use(PRODUCER_BYTE_RATE, len(payload))
        answer = charge.spend(lambda: self._produce(payload, context, kept, timing))
        return continued(answer, lambda: throttle_field(charge, self._meters.produce))

    def _produce(self, payload: bytes, context: Context, kept: bool, timing: Timing) -> Answer:
        """Returns the answer at once, unless it waits for memory or replicas. `kept`: the payload
        stays in memory until the answer, not only until the append.
        """
        try:
            request = wire.decode_produce_request(payload)
        except ApiError as error:
            return _refuse(context, error)
        denied = deny_produce(access_of_call(), request)
        if denied and not request.partition_data:
            return self._produced(denied, timing)
        answer = self._produce_allowed(request, payload, kept, timing)
        return continued(answer, lambda: self._told(denied)) if denied else answer

    def _produce_allowed(
        self,
        request: wire.ProduceRequest,
        payload: bytes,
        kept: bool,
        timing: Timing,
    ) -> bytes | asyncio.Future[bytes]:
        if request.timeout_ms <= 0:
            request.timeout_ms = self._request_timeout_ms
        # No request overtakes those that queue for memory: it may be of the same producer.
        taken = None if self._later else self._memory.take(len(payload))
        if taken is not None:
            return self._produce_within(request, taken, kept, timing)
        task = asyncio.ensure_future(self._produce_later(request, len(payload), kept, timing))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return task

    async def _produce_later(
        self,
        request: wire.ProduceRequest,
        size_bytes: int,
        kept: bool,
        timing: Timing,
    ) -> bytes:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            taken = await self._memory.acquire(size_bytes, request.timeout_ms)
        except ApiError as error:
            failed = [result_of(item) for item in request.partition_data]
            for result in failed:
                result.error_code, result.error_message = code_of(error), str(error)
            return self._produced(failed, timing)
        finally:
            self._later.discard(task)
            timing.queued_until(self._meters.clock_s())
        answer = self._produce_within(request, taken, kept, timing)
        del request
        return answer if isinstance(answer, bytes) else await answer

    def _produce_within(
        self,
        request: wire.ProduceRequest,
        taken_bytes: int,
        kept: bool,
        timing: Timing,
    ) -> bytes | asyncio.Future[bytes]:
        """Appends; releases the memory then, or if it is `kept` at the end of the request."""
        try:
            produced = self._handlers.produce.begin(
                request.acks, request.partition_data, request.transactional_id
            )
        except BaseException:
            self._memory.release(taken_bytes)
            raise
        kept = kept or produced.verifies
        if produced.is_done or not kept:
            self._memory.release(taken_bytes)
        if produced.is_done:
            return self._produced(produced.results, timing)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        timing.waits_since_s = self._meters.clock_s()

        def end() -> None:
            if not answer.done():
                answer.set_result(self._produced(produced.results, timing))

        def ended(_: asyncio.Future[bytes]) -> None:
            produced.abandon()
            if kept:
                self._memory.release(taken_bytes)

        produced.when_done(request.timeout_ms, end)
        answer.add_done_callback(ended)
        return answer

    def _produced(self, results: Sequence[ProduceResult], timing: Timing) -> bytes:
        self._meters.produce.end(timing)
        return self._told(results)

    def _told(self, results: Sequence[ProduceResult]) -> bytes:
        self._meters.produce.fail_each(results)
        return produce_response(results, self._leaders(results))

    def _leaders(self, results: Sequence[Redirecting]) -> list[common_pb2.Node]:
        return leaders_of(results, self._images.image.brokers, self._listener)

    async def fetch(self, request: pb.FetchRequest, context: Context) -> bytes:
        """Answers a consumer's long poll. A client that is above its quota gets an answer without
        partitions, and at most what the quota's windows hold otherwise (KIP-219)."""
        allowed, denied = deny_fetch(access_of_call(), wanted(request.partitions))
        request.max_wait_ms = 0 if denied else request.max_wait_ms
        payload = await self._consumer_fetch(request, context, SessionlessFetch(allowed))
        payload += denied
        self._answers.hold(len(payload), context)
        return payload

    async def fetch_stream(self, requests: Any, context: Context) -> None:
        """Answers a consumer's fetches one after another, in one session."""
        session, answers = ConsumerSession(), AnswersOfCall(self._answers)
        access = access_of_call()
        entries = access.entries
        self._meters.sessions["consumer"] += 1

        async def answer(payload: bytes, behind: asyncio.Future[Any]) -> bytes:
            session.behind = behind
            try:
                request = parse(pb.FetchRequest, payload)
                allowed, denied = deny_fetch(access, wanted(request.partitions))
                session.apply(allowed, map(forgotten_key, request.forgotten))
                check_count(len(session))
            except ApiError as error:
                return wire.encode_fetch_response(
                    wire.FetchResponse([], int(code_of(error)), str(error))
                )
            if access.entries is not entries:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the ACLs changed: call again")
            request.max_wait_ms = 0 if denied else request.max_wait_ms
            payload = await self._consumer_fetch(request, context, session)
            payload += denied
            answers.hold(len(payload))
            return payload

        try:
            work = answer_until_next(context, answer, answers.release)
            await self._until_stopped(context, work)
        finally:
            session.close()
            self._meters.sessions["consumer"] -= 1
            answers.release()

    async def _consumer_fetch(
        self, request: pb.FetchRequest, context: Context, fetch: SessionlessFetch | ConsumerSession
    ) -> bytes:
        await self._throttling.until_unmuted(context)
        with self._meters.consumer_fetch.fetching(context) as timing:
            return await self._timed_fetch(request, context, fetch, timing)

    async def _timed_fetch(
        self,
        request: pb.FetchRequest,
        context: Context,
        fetch: SessionlessFetch | ConsumerSession,
        timing: Timing,
    ) -> bytes:
        if not self._throttling.is_active:
            found = await self._fetch(request, request.max_bytes, fetch, timing)
            return wire.encode_fetch_response(found)
        charge = self._throttling.begin(context)
        throttle_ms = charge.throttle_ms(CONSUMER_BYTE_RATE)
        self._meters.consumer_fetch.throttle_s += throttle_ms / 1000
        if throttle_ms:
            return wire.encode_fetch_response(wire.FetchResponse(throttle_time_ms=throttle_ms))
        most = charge.most_bytes(CONSUMER_BYTE_RATE, self._limit(request.max_bytes))
        response = await charge.spending(self._fetch(request, most, fetch, timing))
        charge.use(CONSUMER_BYTE_RATE, response.size_bytes)
        response.throttle_time_ms = charge.throttle_ms(CONSUMER_BYTE_RATE)
        self._meters.consumer_fetch.throttle_s += response.throttle_time_ms / 1000
        return wire.encode_fetch_response(response)

    async def _fetch(
        self,
        request: pb.FetchRequest,
        max_bytes: int,
        fetch: SessionlessFetch | ConsumerSession,
        timing: Timing,
    ) -> wire.FetchResponse:
        params = FetchParams(
            max_wait_ms=min(request.max_wait_ms, _FETCH_WAIT_MS_MAX),
            min_bytes=min(request.min_bytes, self._limit(max_bytes)),
            max_bytes=self._limit(max_bytes),
            read_committed=request.isolation_level == 1,
            rack=request.rack_id,
            room=self._answers.room,
            timing=timing,
        )
        answers = await self._handlers.fetch.fetch(params, fetch)
        self._meters.consumer_fetch.fail_each(answers)
        if request.plain_records:
            for answer, offset in zip(answers, fetch.offsets, strict=True):
                to_plain(answer, offset)
        return wire.FetchResponse(answers, node_endpoints=self._leaders(answers))

    async def replica_fetch(
        self,
        request: pb.ReplicaFetchRequest,
        context: Context,
        session: FetchSession | None = None,
    ) -> bytes:
        """Answers a follower's long poll; a node of another cluster gets
        INCONSISTENT_CLUSTER_ID."""
        if request.cluster_id and request.cluster_id != self._cluster_id:
            return wire.encode_fetch_response(
                wire.FetchResponse(
                    [],
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"this node is of cluster {self._cluster_id}, not {request.cluster_id}",
                )
            )
        replica = FetchingReplica(request.replica_id, request.replica_epoch)
        params = FetchParams(
            max_wait_ms=min(request.max_wait_ms, _FETCH_WAIT_MS_MAX),
            min_bytes=request.min_bytes,
            max_bytes=self._limit(request.max_bytes),
            replica=replica,
        )
        items = wanted(request.partitions)
        fetch: FetchContext = session or SessionlessFetch(items, from_replica=True)
        if session is not None:
            forgotten = map(forgotten_key, request.forgotten)
            try:
                session.begin(replica, request.session_id, items, forgotten)
            except ApiError as error:
                return wire.encode_fetch_response(
                    wire.FetchResponse([], int(code_of(error)), str(error))
                )
        with self._meters.follower_fetch.fetching(context) as timing:
            answers = await self._handlers.fetch.fetch(replace(params, timing=timing), fetch)
        self._meters.follower_fetch.fail_each(answers)
        session_id = 0 if session is None else session.id
        return wire.encode_fetch_response(wire.FetchResponse(answers, session_id=session_id))

    async def replica_fetch_stream(self, requests: Any, context: Context) -> None:
        """Answers a follower's fetches one after another, in one session."""
        session = FetchSession(tells_commits=self._handlers.fetch.selects_closest)

        def answer(request: Any, behind: asyncio.Future[Any]) -> Coroutine[Any, Any, bytes]:
            session.behind = behind
            return self.replica_fetch(request, context, session)

        work = answer_until_next(context, answer)
        self._meters.sessions["follower"] += 1
        try:
            await self._until_stopped(context, work)
        finally:
            self._meters.sessions["follower"] -= 1
            session.close()

    async def _until_stopped(self, context: Context, work: Coroutine[Any, Any, None]) -> None:
        """Serves an open call; the stop of the node ends it with UNAVAILABLE."""
        task = asyncio.ensure_future(work)
        self._open_calls.add(task)
        try:
            await asyncio.wait((task,))
            if task.cancelled():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is stopping")
            task.result()
        finally:
            self._open_calls.discard(task)
            task.cancel()

    def end_open_calls(self) -> None:
        """Cancels open calls, since the server's stop would wait for them until its grace is
        over."""
        for task in self._open_calls:
            task.cancel()

    def _limit(self, max_bytes: int) -> int:
        return min(max_bytes, self._fetch_max_bytes) if max_bytes > 0 else self._fetch_max_bytes

    def _charged(self, method: Any) -> Any:
        """A small call whose time on the loop is charged to its client."""

        async def call(request: Any, context: Context) -> Any:
            if not self._throttling.is_active:
                return await method(request, context)
            await self._throttling.until_unmuted(context)
            charge = self._throttling.begin(context)
            try:
                return await charge.spending(method(request, context))
            finally:
                charge.throttle_ms()

        return call

    # --- the small calls -----------------------------------------------------------------------

    async def list_offsets(
        self, request: pb.ListOffsetsRequest, context: Context
    ) -> pb.ListOffsetsResponse:
        response = pb.ListOffsetsResponse()
        answers = await asyncio.gather(
            *(self._list_offset(request, item) for item in request.partitions)
        )
        response.partitions.extend(answers)
        return response

    async def _list_offset(
        self, request: pb.ListOffsetsRequest, item: pb.ListOffsetsRequest.ListOffsetsPartition
    ) -> pb.ListOffsetsResponse.PartitionResponse:
        answer = pb.ListOffsetsResponse.PartitionResponse(
            topic=item.topic,
            partition_index=item.partition_index,
            timestamp=-1,
            offset=-1,
            leader_epoch=-1,
        )
        try:
            found = await self._handlers.offsets.list_offset(
                item.topic,
                item.partition_index,
                item.timestamp,
                current_leader_epoch=known(item, "current_leader_epoch"),
                from_replica=request.replica_id > 0,
                read_committed=request.isolation_level == 1,
            )
        except ApiError as error:
            set_error(answer, error)
            return answer
        if found.offset is not None:
            answer.offset = found.offset
        if found.timestamp_ms is not None:
            answer.timestamp = found.timestamp_ms
        if found.leader_epoch is not None:
            answer.leader_epoch = found.leader_epoch
        return answer

    async def metadata(self, request: pb.MetadataRequest, context: Context) -> pb.MetadataResponse:
        return metadata_response(
            self._images.image,
            request,
            self._cluster_id,
            self._controller_id(),
            self._listener,
            self._handlers.is_opening,
        )

    async def init_producer_id(
        self, request: pb.InitProducerIdRequest, context: Context
    ) -> pb.InitProducerIdResponse:
        """Returns an id for an idempotent producer, or that of a transactional id."""
        try:
            if request.transactional_id:
                if self._handlers.init_transactional is None:
                    raise UnsupportedVersionError("this node coordinates no transactions")
                return await self._handlers.init_transactional(request)
            producer_id = await self._handlers.producer_ids.generate()
        except ApiError as error:
            return pb.InitProducerIdResponse(
                error_code=int(code_of(error)),  # type: ignore[arg-type]
                error_message=str(error),
                producer_id=-1,
                producer_epoch=-1,
            )
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def delete_records(
        self, request: pb.DeleteRecordsRequest, context: Context
    ) -> pb.DeleteRecordsResponse:
        """Moves log starts up (KIP-107); waits for the replicas on live brokers."""
        timeout_ms = request.timeout_ms if request.timeout_ms > 0 else self._request_timeout_ms

        async def one(
            item: pb.DeleteRecordsRequest.DeleteRecordsPartition,
        ) -> pb.DeleteRecordsResponse.PartitionResult:
            result = pb.DeleteRecordsResponse.PartitionResult(
                topic=item.topic, partition_index=item.partition_index, low_watermark=-1
            )
            try:
                result.low_watermark = await self._handlers.deletion.delete(
                    item.topic, item.partition_index, item.offset, timeout_ms
                )
            except ApiError as error:
                set_error(result, error)
            return result

        results = await asyncio.gather(*map(one, request.partitions))
        return pb.DeleteRecordsResponse(partitions=results)

    async def plan_read(self, request: pb.PlanReadRequest, context: Context) -> pb.PlanReadResponse:
        if self._handlers.plans is None:
            return pb.PlanReadResponse(tail_offset=request.start_offset, not_direct="no tier here")
        return await self._handlers.plans.answer(request)

    async def offset_for_leader_epoch(
        self, request: pb.OffsetForLeaderEpochRequest, context: Context
    ) -> pb.OffsetForLeaderEpochResponse:
        return epoch_ends(self._handlers.offsets, request)


async def _refuse(context: Context, error: ApiError) -> bytes:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    raise error


# Without a deserializer gRPC passes the request's bytes; without a serializer it sends bytes as is.


def _unary(method: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        parsed(method, request),
        response_serializer=lambda response: response.SerializeToString(),
    )
