"""`with` and `async with` for objects that must be closed however the block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class AsyncCloses(ABC):
    """Closed at the end of an `async with`."""

    @abstractmethod
    async def close(self) -> None:
        """Releases all resources. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class Closes(ABC):
    """Closed at the end of a `with`."""

    @abstractmethod
    def close(self) -> None:
        """Releases all resources. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
