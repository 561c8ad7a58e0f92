"""The bulk messages of the wire, made by hand.

Same bytes as proto/tidemark/v1/log.proto (tests hold each codec against protobuf, both directions),
without copying payloads through message objects: `decode_*` gives views into the received bytes,
`encode_*` takes buffers and joins them once.
"""

from __future__ import annotations

from tidemark.wire.channel import (
    CHANNEL_OPTIONS,
    FETCH,
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
    "FETCH",
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
