"""A contradiction that a check found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A file, the byte at which it is wrong (None: the file as a whole), and the reason.

    `is_damage` is False for what the next start of the node repairs without a loss.
    """

    path: str
    position: int | None
    reason: str
    is_damage: bool = True

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path}, byte {self.position}"
        return f"{where}: {self.reason}"
