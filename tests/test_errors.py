"""The error table: the same in Python and on the wire, one class each."""

from __future__ import annotations

import pytest

from tidemark import errors
from tidemark.errors import ApiError, ErrorCode, TidemarkError, code_of, error_for, raise_for
from tidemark.v1 import errors_pb2


def classes() -> list[type[ApiError]]:
    """Every class of the table; sub-classes that a room adds belong to their parent's row."""
    return [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and cls is not ApiError and issubclass(cls, ApiError)
    ]


def test_the_table_equals_the_one_on_the_wire() -> None:
    assert {e.name: e.value for e in ErrorCode} == dict(errors_pb2.ErrorCode.items())


def test_every_code_has_exactly_one_class() -> None:
    codes = [cls.code for cls in classes()]
    assert sorted(codes) == sorted(set(ErrorCode) - {ErrorCode.NONE})


@pytest.mark.parametrize("code", [c for c in ErrorCode if c is not ErrorCode.NONE])
def test_an_error_goes_over_the_wire_and_back(code: ErrorCode) -> None:
    error = error_for(code, "says why")
    assert str(error) == "says why"
    assert code_of(error) is code
    assert error_for(error.code).retriable == type(error).retriable
    assert str(error_for(code)) == (type(error).__doc__ or "").strip()


def test_what_kafka_calls_retriable_is_retriable() -> None:
    retriable = {cls.code for cls in classes() if cls.retriable}
    assert {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_CONTROLLER,
    } <= retriable
    assert not retriable & {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
    }


def test_a_code_from_the_future_keeps_its_number() -> None:
    error = error_for(9999, "new")
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "9999" in str(error)


def test_none_raises_nothing_and_others_raise() -> None:
    raise_for(ErrorCode.NONE)
    with pytest.raises(errors.NotControllerError, match="ask 3"):
        raise_for(ErrorCode.NOT_CONTROLLER, "ask 3")


def test_errors_outside_the_table_are_unknown_to_the_other_side() -> None:
    assert code_of(KeyError("x")) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert issubclass(errors.FatalError, TidemarkError)
