"""Bounds of what a peer may send. A message beyond them is refused; it never changes a role.

An epoch has to be one that elections explain. `LAST_EPOCH` is the last that another can follow: one
message with a later epoch would end all elections for good. A single message may raise the epoch by
`EPOCHS_AHEAD_MAX` at most; one election a second takes twelve days for that many. A new replica
(epoch 0) may join a quorum of any age and accepts the first half of all epochs.
"""

from __future__ import annotations

from quorum.raft.messages import (
    AnyRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Response,
    VoteRequest,
)
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode

LAST_EPOCH = 2**31 - 2
"""The largest epoch of a replica: the wire has 31 bits, and the next epoch has to fit."""
EPOCHS_AHEAD_MAX = 1 << 20
"""Epochs by which one message may be ahead of this replica."""
READER_ID = -1
"""Replica id of a reader that is no replica."""


def is_plausible_epoch(epoch: int, own_epoch: int) -> bool:
    """Whether a peer can be in this epoch; an older one is plausible, too."""
    latest = own_epoch + EPOCHS_AHEAD_MAX if own_epoch > 0 else LAST_EPOCH // 2
    return 0 <= epoch <= min(latest, LAST_EPOCH)


def fault_of_request(request: AnyRequest, own_id: int, own_epoch: int) -> str:
    """Returns what makes a request invalid, in words; empty if nothing does."""
    match request:
        case FetchRequest():  # the frequent one
            return _fault_of_fetch(request)
        case VoteRequest():
            return _fault_of_sender("candidate", request.candidate.replica_id, own_id) or (
                _fault_of_epoch(request.epoch, own_epoch)
            )
        case BeginQuorumEpochRequest() | EndQuorumEpochRequest():
            fault = _fault_of_sender("leader", request.leader_id, own_id)
            if not fault and isinstance(request, EndQuorumEpochRequest):
                ids = [key.replica_id for key in request.preferred_candidates]
                fault = f"candidate {min(ids)} is no node" if ids and min(ids) < 0 else ""
            if not fault and request.epoch == 0:
                fault = "epoch 0 has no leader"
            return fault or _fault_of_epoch(request.epoch, own_epoch)
        case FetchSnapshotRequest():
            return _fault_of_reader(request.replica.replica_id, request.epoch) or (
                _fault_of_snapshot(request.snapshot_id)
            )
        case _:  # voter changes are refused by the leader, each with its own error
            return ""


def fault_of_response(response: Response, own_epoch: int) -> str:
    """Returns what makes a response invalid, in words; empty if nothing does.

    An error may come with epoch -1: the peer could not ask its replica.
    """
    epoch = response.header.epoch
    if epoch < 0 and response.header.error != ErrorCode.NONE:
        return ""
    fault = _fault_of_epoch(epoch, own_epoch)
    if fault or response.header.error != ErrorCode.NONE:
        return fault
    if not isinstance(response, FetchResponse):
        return ""
    if response.log_start_offset < 0:
        return f"log start offset {response.log_start_offset}"
    if response.diverging_epoch is not None and min(response.diverging_epoch) < 0:
        return f"diverging at (epoch, end offset) {response.diverging_epoch}"
    return _fault_of_snapshot(response.snapshot_id)


def _fault_of_epoch(epoch: int, own_epoch: int) -> str:
    if is_plausible_epoch(epoch, own_epoch):
        return ""
    return f"epoch {epoch} does not follow from epoch {own_epoch} by elections"


def _fault_of_sender(what: str, node_id: int, own_id: int) -> str:
    if node_id < 0:
        return f"{what} {node_id} is no node"
    return f"{what} {node_id} has the id of this node" if node_id == own_id else ""


def _fault_of_reader(replica_id: int, epoch: int) -> str:
    if replica_id < READER_ID:
        return f"replica {replica_id} is no node"
    return f"epoch {epoch}" if epoch < 0 else ""


def _fault_of_fetch(request: FetchRequest) -> str:
    epoch, last_epoch = request.epoch, request.last_fetched_epoch
    if request.fetch_offset < 0 or not 0 <= last_epoch <= epoch:
        return f"offset {request.fetch_offset} of epoch {last_epoch}, in epoch {epoch}"
    if request.max_wait_ms < 0 or request.max_bytes < 0:
        return f"{request.max_bytes} bytes within {request.max_wait_ms} ms"
    return _fault_of_reader(request.replica.replica_id, epoch)


def _fault_of_snapshot(snapshot_id: SnapshotId | None) -> str:
    if snapshot_id is None or min(snapshot_id) >= 0:
        return ""
    return f"checkpoint (end offset, epoch) {tuple(snapshot_id)}"
