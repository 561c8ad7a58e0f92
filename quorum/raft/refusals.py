"""Messages that no correct peer sends: counted, reported to the edge, of no other effect."""

from __future__ import annotations

from quorum.raft.messages import AnyRequest
from quorum.raft.requests import Pending
from quorum.raft.state import RaftState
from tidemark.errors import ErrorCode


def refuse(state: RaftState, token: int, request: AnyRequest, fault: str) -> None:
    """Replies INVALID_REQUEST."""
    state.metrics.requests_refused += 1
    state.effects.remote_fault = f"a {type(request).__name__} is refused: {fault}"
    state.fail(token, request, ErrorCode.INVALID_REQUEST)


def refuse_response(state: RaftState, pending: Pending, fault: str, now_ms: int) -> None:
    """Treats a response like none at all: its sender is left alone for the retry backoff."""
    state.remote_faults += 1
    asked = type(pending.request).__name__
    state.effects.remote_fault = f"node {pending.node_id} answers a {asked} wrongly: {fault}"
    state.requests.back_off(pending.node_id, now_ms)
