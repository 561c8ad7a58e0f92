"""Filters of a batch query that cut what is planned: topic, partition, offset, timestamp. Pure.

Spark applies a filter itself unless the source takes it over. Those of whole topics and partitions,
and comparisons of offsets, are taken over. A timestamp bounds the start alone: the first record
that is so late has no earlier one behind it. Spark filters the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tidemark.spark.offsets import OffsetRange

_OPERATORS = {
    "EqualTo": "==",
    "EqualNullSafe": "==",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}
_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda value, bound: bool(value == bound),
    ">": lambda value, bound: bool(value > bound),
    ">=": lambda value, bound: bool(value >= bound),
    "<": lambda value, bound: bool(value < bound),
    "<=": lambda value, bound: bool(value <= bound),
    "in": lambda value, bound: value in bound,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {"topic": str, "partition": int, "offset": int}


class Restriction(NamedTuple):
    """A comparison of a column with a value; with a tuple of values for `in`.

    That of a timestamp is `>=`, and its value is in ms.
    """

    column: str
    operator: str
    value: Any


def accepted(filters: Iterable[Any]) -> tuple[tuple[Restriction, ...], list[Any]]:
    """The restrictions that follow from Spark's filters, and the filters that Spark has to apply.

    A filter of another kind, column or type is left to Spark.
    """
    found: list[Restriction] = []
    left: list[Any] = []
    for each in filters:
        restriction = _restriction(each)
        if restriction is not None:
            found.append(restriction)
        if restriction is None or not _is_exact(restriction):
            left.append(each)
    return tuple(found), left


def _restriction(given: Any) -> Restriction | None:
    operator = _OPERATORS.get(type(given).__name__)
    if operator is None or len(given.attribute) != 1:
        return None
    (column,), value = given.attribute, given.value
    if column == "timestamp":
        return _late(operator, value)
    if operator == "in":
        value = tuple(value)
    values = value if operator == "in" else (value,)
    kind = _TYPES.get(column)
    if kind is None or not values or not all(type(one) is kind for one in values):
        return None
    return Restriction(column, operator, value)


def _late(operator: str, value: Any) -> Restriction | None:
    """The start that a timestamp bounds; None for one before 1970, or without a time zone."""
    if operator not in ("==", ">", ">=") or not isinstance(value, datetime):
        return None
    if value.tzinfo is None or value < _EPOCH:
        return None
    return Restriction("timestamp", ">=", (value - _EPOCH) // timedelta(milliseconds=1))


def _is_exact(restriction: Restriction) -> bool:
    """Whether the planned ranges have no row that the filter refuses."""
    if restriction.column == "offset":
        return restriction.operator != "in"
    return restriction.column != "timestamp"


def within(ranges: Sequence[OffsetRange], restrictions: Sequence[Restriction]) -> list[OffsetRange]:
    """The ranges without what the restrictions of topics, partitions and offsets exclude."""
    found: list[OffsetRange] = []
    for each in ranges:
        names = {"topic": each.topic, "partition": each.partition}
        start, end = each.start, each.end
        keeps = True
        for column, operator, value in restrictions:
            if column in names:
                keeps = keeps and _HOLDS[operator](names[column], value)
            elif column == "offset":
                least, most = _bounds(operator, value, end)
                start, end = max(start, least), min(end, most)
        if keeps and start < end:
            found.append(replace(each, start=start, end=end))
    return found


def _bounds(operator: str, value: Any, end: int) -> tuple[int, int]:
    """The offsets that satisfy a comparison: from the first up to, but not including, the other."""
    if operator in (">", ">="):
        return value + (operator == ">"), end
    if operator in ("<", "<="):
        return 0, value + (operator == "<=")
    values = value if operator == "in" else (value,)
    return min(values), max(values) + 1


def timestamp_min_ms(restrictions: Sequence[Restriction]) -> int | None:
    """The time before which no record is wanted, in ms; None if there is none."""
    stamps = [each.value for each in restrictions if each.column == "timestamp"]
    return max(stamps, default=None)
