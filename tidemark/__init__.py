"""Tidemark for Python: what a user imports.

`import tidemark` loads nothing heavy; a name is resolved when it is first asked for (PEP 562), so a
program that only wants `TopicPartition` never pays for gRPC, Arrow or numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark import errors
    from tidemark.client import (
        Admin,
        AsyncAdmin,
        AsyncConsumer,
        AsyncProducer,
        Consumer,
        NewTopic,
        Producer,
    )
    from tidemark.types import TopicPartition

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "NewTopic",
    "Producer",
    "TopicPartition",
    "errors",
]

_HOMES = {
    "Admin": "tidemark.client",
    "AsyncAdmin": "tidemark.client",
    "AsyncConsumer": "tidemark.client",
    "AsyncProducer": "tidemark.client",
    "Consumer": "tidemark.client",
    "NewTopic": "tidemark.client",
    "Producer": "tidemark.client",
    "TopicPartition": "tidemark.types",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("tidemark.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidemark' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "errors"])
