"""The client of a request: its user and its client id.

The user is the name of the principal that `quorum.access` found, ANONYMOUS on a listener that does
not know its callers. The client id is metadata of the gRPC call, percent-encoded.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from node.quotas.clients import Caller
from quorum.access.guard import access_of_call
from tidemark.wire.channel import CLIENT_ID_KEY


def caller_of(context: Any) -> Caller:
    """The caller of a gRPC call; a client that names no id has an empty one."""
    user = access_of_call().user
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_KEY:
            return Caller(user, unquote(value, errors="replace"))
    return Caller(user, "")
