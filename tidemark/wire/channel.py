"""gRPC options that every channel and server uses, and the paths of the bulk methods."""

from __future__ import annotations

PRODUCE = "/tidemark.v1.Log/Produce"
PRODUCE_STREAM = "/tidemark.v1.Log/ProduceStream"
FETCH_STREAM = "/tidemark.v1.Log/FetchStream"
REPLICA_FETCH = "/tidemark.v1.Replication/Fetch"
REPLICA_FETCH_STREAM = "/tidemark.v1.Replication/FetchStream"

CLIENT_ID_KEY = "tidemark-client-id"
"""Metadata of a call: the client's client.id, percent-encoded. Quotas and logs name it."""

AUTHORIZATION_KEY, BEARER_SCHEME = "authorization", "Bearer "
"""Metadata of a call at a listener that speaks SASL: the scheme, and the token of the user."""

SASL_KEY = "tidemark-sasl-bin"
"""Metadata of a call of SaslAuthenticate: its request, serialized."""

MAX_MESSAGE_BYTES = 128 * 1024 * 1024

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
]

# A node that comes back is found within a second, also at another address of its name. gRPC's own
# back-off grows to two minutes, and it asks for a name's address every 30 s at most.
RECONNECT_OPTIONS: list[tuple[str, int]] = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
]
