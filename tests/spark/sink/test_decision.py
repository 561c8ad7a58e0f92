"""Names and records of a sink."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidemark.errors import ConfigError
from tidemark.spark.sink.decision import (
    Attempt,
    Decision,
    SinkError,
    attempts_pattern,
    check_owner,
    from_pieces,
    sink_name,
    sink_of,
    slots,
    to_pieces,
)

SINK = sink_name("a.b-c")


def decision(batch: int, winners: int, query: str = "q") -> Decision:
    attempts = [Attempt(next(slots(SINK, n, n % 3)), 10**9 + n, n % 7) for n in range(winners)]
    return Decision(batch, "run", query, tuple(attempts))


@pytest.mark.parametrize("winners", [0, 1, 100, 5_000])
def test_a_decision_survives_its_record_however_many_winners_it_has(winners: int) -> None:
    wanted = decision(41, winners)
    pieces = to_pieces(wanted)
    assert all(len(piece.encode()) <= 4096 for piece in pieces)
    behind = {len(pieces): "older 9/9 of a longer decision"}
    assert from_pieces(SINK, dict(enumerate(pieces)) | behind) == wanted
    assert from_pieces(SINK, {}) is None


@pytest.mark.parametrize("pieces", [{0: "offsets of a consumer"}, {1: "x"}, {0: ""}, {0: None}])
def test_a_group_of_something_else_is_refused(pieces: dict[int, Any]) -> None:
    with pytest.raises(SinkError, match="are not those of a sink"):
        from_pieces(SINK, pieces)


def test_pieces_of_two_decisions_are_refused() -> None:
    pieces = dict(enumerate(to_pieces(decision(1, 1_000))))
    pieces[1] = pieces[1].replace("run", "other", 1)
    with pytest.raises(SinkError, match="piece 1 is of another decision"):
        from_pieces(SINK, pieces)


def test_a_decision_of_an_earlier_version_has_the_ids_of_that_version() -> None:
    old = '{"version":1,"batch":7,"run":"r","query":"q","winners":[["3/12",5,0]]}'
    found = from_pieces(SINK, {0: f"r 1/1 {old}"})
    assert found == Decision(7, "r", "q", (Attempt(f"{SINK}/7/r/3/12", 5, 0),))


def test_the_pattern_takes_attempts_of_the_sink_and_of_no_other() -> None:
    pattern = re.compile(attempts_pattern(SINK))
    own, following, *more = slots(SINK, 3, 1)
    assert (own, following, len(more)) == (f"{SINK}/3/1", f"{SINK}/3/2", 98)
    assert pattern.fullmatch(own) and sink_of(own) == "a.b-c"
    assert not pattern.fullmatch(SINK)
    assert not pattern.fullmatch(own.replace("a.b", "aXb"))


@pytest.mark.parametrize("sink_id", ["", "a/b", "a b", "x" * 201, "ä"])
def test_an_id_that_names_do_not_allow_is_refused(sink_id: str) -> None:
    with pytest.raises(ConfigError, match="sinkId="):
        sink_name(sink_id)


def test_a_sink_belongs_to_one_query() -> None:
    check_owner(None, decision(0, 0))
    check_owner(decision(5, 0), decision(5, 0))
    with pytest.raises(ConfigError, match="has written batch 5 already, so the checkpoint is an"):
        check_owner(decision(5, 0), decision(4, 0))  # its next batches have other rows
    with pytest.raises(ConfigError, match="another query has used it, up to batch 5"):
        check_owner(decision(5, 0), decision(6, 0, query="new"))
    with pytest.raises(ConfigError, match="query q; this one is a batch job"):
        check_owner(decision(5, 0), decision(6, 0, query=""))


def test_batch_jobs_do_not_lose_an_earlier_batch_in_silence() -> None:
    check_owner(decision(5, 0, ""), decision(5, 0, ""))
    with pytest.raises(ConfigError, match="batches of one sinkId grow"):
        check_owner(decision(5, 0, ""), decision(4, 0, ""))
