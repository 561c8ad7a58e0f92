"""The two times that a decision is given."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """`wall_ms` goes into records, and may jump. `mono_ms` measures sessions and timeouts: it never
    goes back, and means nothing on another broker."""

    wall_ms: int
    mono_ms: int
