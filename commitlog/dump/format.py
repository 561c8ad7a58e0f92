"""Formats the entries of `commitlog.dump.dump_file` as Kafka's DumpLogSegments does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tidemark.records import (
    ControlMessage,
    ControlRecord,
    EndTransactionMarker,
    KRaftVersion,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    VoterId,
    Voters,
)
from tidemark.types import uuid_to_text

Entry = dict[str, Any]


def format_entry(entry: Entry, *, record_metadata: bool = True) -> str:
    """Returns one line of text; Kafka's own if Kafka shows such an entry.

    Without `record_metadata` the line of a record has its key and payload alone.
    """
    if entry["kind"] == "record" and not record_metadata:
        contents = _contents(entry) if "control" not in entry else ""
        return contents and "|" + contents
    return _FORMATS[entry["kind"]](entry)


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _batch(entry: Entry) -> str:
    return (
        f"baseOffset: {entry['base_offset']} lastOffset: {entry['last_offset']}"
        f" count: {entry['count']} baseSequence: {entry['base_sequence']}"
        f" lastSequence: {entry['last_sequence']} producerId: {entry['producer_id']}"
        f" producerEpoch: {entry['producer_epoch']}"
        f" partitionLeaderEpoch: {entry['partition_leader_epoch']}"
        f" isTransactional: {_flag(entry['is_transactional'])}"
        f" isControl: {_flag(entry['is_control'])}"
        f" deleteHorizonMs: {_optional(entry['delete_horizon_ms'])}"
        f" position: {entry['position']} {entry['timestamp_type']}: {entry['max_timestamp_ms']}"
        f" size: {entry['size_bytes']} magic: {entry['magic']}"
        f" compresscodec: {entry['compression']} crc: {entry['crc']}"
        f" isvalid: {_flag(entry['is_valid'])}"
    )


def _record(entry: Entry) -> str:
    line = (
        f"| offset: {entry['offset']} {entry['timestamp_type']}: {entry['timestamp_ms']}"
        f" keySize: {entry['key_size']} valueSize: {entry['value_size']}"
        f" sequence: {entry['sequence']} headerKeys: [{','.join(entry['header_keys'])}]"
    )
    if "control" in entry:
        return line + " " + _control(entry["control"])
    if "control_type" in entry:
        return f"{line} controlType: {entry['control_type']}"
    return line + _contents(entry)


def _contents(entry: Entry) -> str:
    line = ""
    if entry.get("key") is not None:
        line += f" key: {entry['key']}"
    if entry.get("payload") is not None:
        line += f" payload: {entry['payload']}"
    return line


def _control(record: ControlRecord) -> str:
    message = record.message
    if isinstance(message, EndTransactionMarker):
        outcome = "COMMIT" if message.committed else "ABORT"
        return f"endTxnMarker: {outcome} coordinatorEpoch: {message.coordinator_epoch}"
    names = {LeaderChange: "LeaderChange:", Voters: "KRaftVoters"}
    name = names.get(type(message), type(message).__name__)
    return f"{name} {json.dumps(control_fields(message), separators=(',', ':'))}"


def control_fields(message: ControlMessage) -> Entry:
    """Returns the fields of a control message by Kafka's JSON names."""
    fields: Entry = {"version": message.version}
    match message:
        case EndTransactionMarker():
            fields["coordinatorEpoch"] = message.coordinator_epoch
        case LeaderChange():
            fields["leaderId"] = message.leader_id
            fields["voters"] = [_voter_id(v, message.version) for v in message.voters]
            fields["grantingVoters"] = [
                _voter_id(v, message.version) for v in message.granting_voters
            ]
        case SnapshotHeader():
            fields["lastContainedLogTimestamp"] = message.last_contained_log_timestamp_ms
        case SnapshotFooter():
            return fields
        case KRaftVersion():
            fields["kRaftVersion"] = message.kraft_version
        case Voters():
            fields["voters"] = [
                {
                    "voterId": voter.voter_id,
                    "voterDirectoryId": uuid_to_text(voter.voter_directory_id),
                    "endpoints": [
                        {"name": e.name, "host": e.host, "port": e.port} for e in voter.endpoints
                    ],
                    "kRaftVersionFeature": {
                        "minSupportedVersion": voter.min_supported_version,
                        "maxSupportedVersion": voter.max_supported_version,
                    },
                }
                for voter in message.voters
            ]
    return fields


def _voter_id(voter: VoterId, version: int) -> Entry:
    fields: Entry = {"voterId": voter.voter_id}
    if version >= 1:
        fields["voterDirectoryId"] = uuid_to_text(voter.voter_directory_id)
    return fields


def _producer(entry: Entry) -> str:
    line = (
        f"producerId: {entry['producer_id']} producerEpoch: {entry['producer_epoch']}"
        f" coordinatorEpoch: {entry['coordinator_epoch']}"
        f" currentTxnFirstOffset: {_optional(entry['current_txn_first_offset'])}"
        f" lastTimestamp: {entry['last_timestamp_ms']}"
    )
    if "last_offset" in entry:
        line += (
            f" firstSequence: {entry['first_sequence']} lastSequence: {entry['last_sequence']}"
            f" lastOffset: {entry['last_offset']} offsetDelta: {entry['offset_delta']}"
            f" timestamp: {entry['timestamp_ms']}"
        )
    return line


def _transaction(entry: Entry) -> str:
    return (
        f"version: {entry['version']} producerId: {entry['producer_id']}"
        f" firstOffset: {entry['first_offset']} lastOffset: {entry['last_offset']}"
        f" lastStableOffset: {entry['last_stable_offset']}"
    )


def _damage(entry: Entry) -> str:
    return (
        f"Found {entry['size_bytes']} invalid bytes of {entry['name']}, from byte"
        f" {entry['position']} on: {entry['reason']}"
    )


def _gaps(entry: Entry) -> str:
    lines = [f"  {before} is followed by {after}" for before, after in entry["pairs"]]
    return "\n".join([f"Non-consecutive offsets in {entry['name']}", *lines])


_FORMATS: dict[str, Callable[[Entry], str]] = {
    "file": lambda e: f"Dumping {e['name']}",
    "start": lambda e: f"Log starting offset: {e['offset']}",
    "snapshot": lambda e: f"Snapshot end offset: {e['end_offset']}, epoch: {e['epoch']}",
    "batch": _batch,
    "record": _record,
    "empty": lambda e: f"{e['name']} is empty.",
    "offset_index": lambda e: f"offset: {e['offset']} position: {e['position']}",
    "time_index": lambda e: f"timestamp: {e['timestamp_ms']} offset: {e['offset']}",
    "transaction": _transaction,
    "producer": _producer,
    "checkpoint": lambda e: f"{e['topic']}-{e['partition']}: {e['offset']}",
    "epoch": lambda e: f"epoch: {e['epoch']} startOffset: {e['start_offset']}",
    "property": lambda e: f"{e['key']}: {e['value']}",
    "damage": _damage,
    "mismatch": lambda e: f"Mismatch in {e['name']} at byte {e['position']}: {e['reason']}",
    "gaps": _gaps,
    "bootstrap": lambda _: "KRaft bootstrap snapshot",
}
