"""The client of a request: its user and its client id.

The one place that says who calls. There is no authentication yet, so every user is ANONYMOUS, as on
a PLAINTEXT listener of Kafka's. The client id is metadata of the gRPC call, percent-encoded.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from node.quotas.clients import Caller
from tidemark.wire.channel import CLIENT_ID_KEY

ANONYMOUS = "ANONYMOUS"


def caller_of(context: Any) -> Caller:
    """The caller of a gRPC call; a client that names no id has an empty one."""
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_KEY:
            return Caller(ANONYMOUS, unquote(value, errors="replace"))
    return Caller(ANONYMOUS, "")
