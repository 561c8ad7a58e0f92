"""Tidemark for Python: the public names of a client.

    from tidemark import Admin, Consumer, NewTopic, Producer, TopicPartition

`Producer`, `Consumer` and `Admin` block; `AsyncProducer`, `AsyncConsumer` and `AsyncAdmin` are
their asyncio counterparts. `errors` has the exceptions, named after Kafka's error table. Programs
import other names from `tidemark.client`, `tidemark.errors` and `tidemark.types`, and generated
messages from `tidemark.v1`. The remaining packages serve Tidemark itself; every room may ask
`surroundings` for clocks, randomness and network; nodes set up their `logs`.

`import tidemark` loads nothing heavy. A name is resolved when it is first used (PEP 562), so a
program that only needs `TopicPartition` loads neither gRPC nor Arrow nor numba. No module of this
package imports a server room (commitlog, snapshot, quorum, tiering, node) when it is imported.
Commands of `tidemark.cli` that run a node import them when they are called.
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

__version__ = "0.1.0"
"""The version of all rooms; the wheel, the command and the chart's appVersion have it from here."""

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "NewTopic",
    "Producer",
    "TopicPartition",
    "__version__",
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
