"""The wire below clients and nodes: codecs of the bulk messages, calls that stay open, paths of
RPCs.

Produce and fetch messages are encoded by hand. The bytes are those of proto/tidemark/v1/log.proto;
tests compare each codec with protobuf in both directions. The reason is speed: `decode_*` gives
views into the received bytes, and `encode_*` takes buffers and joins them once.

    channel      gRPC options of every channel and server, paths of the bulk methods
    produce, fetch    the messages as dataclasses, and their codecs
    primitives   the protobuf wire format
    exchange     ordered requests and answers over one open call
    credentials  keys and certificates of connections
    network      channels and servers: gRPC's, or those of a simulation
    metering     counts of requests by API
    rpcs         paths and message classes of the unary RPCs, from the protobuf descriptors

Clients and nodes import what is listed here, and the modules `exchange`, `metering`, `network`,
`credentials` and `rpcs`. All but the last import gRPC. The room promises that malformed input
raises InvalidRequestError and no other exception, and that every length is checked before it is
used.
"""

from __future__ import annotations

from tidemark.wire.channel import (
    CHANNEL_OPTIONS,
    FETCH_STREAM,
    MAX_MESSAGE_BYTES,
    PRODUCE,
    PRODUCE_STREAM,
    REPLICA_FETCH,
    REPLICA_FETCH_STREAM,
)
from tidemark.wire.fetch import (
    FetchPartitionData,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_response,
)
from tidemark.wire.produce import (
    PartitionProduceData,
    ProduceRequest,
    decode_produce_request,
    encode_produce_request,
)

__all__ = [
    "CHANNEL_OPTIONS",
    "FETCH_STREAM",
    "MAX_MESSAGE_BYTES",
    "PRODUCE",
    "PRODUCE_STREAM",
    "REPLICA_FETCH",
    "REPLICA_FETCH_STREAM",
    "FetchPartitionData",
    "FetchResponse",
    "PartitionProduceData",
    "ProduceRequest",
    "decode_fetch_response",
    "decode_produce_request",
    "encode_fetch_response",
    "encode_produce_request",
]
