"""Answers of plain records that can not be decoded."""

from __future__ import annotations

from node.serving.plain_records import to_plain
from tests.node.cluster import TOPIC, batch
from tidemark.errors import ErrorCode
from tidemark.wire import FetchPartitionData


def test_an_answer_with_an_error_names_no_next_offset() -> None:
    damaged = bytearray(batch("a", "b"))
    damaged[-1] ^= 1
    answer = FetchPartitionData(TOPIC, 0, next_offset=2, records=(bytes(damaged),))
    to_plain(answer, 0)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert (answer.plain_records, answer.next_offset) == ((), 0)
