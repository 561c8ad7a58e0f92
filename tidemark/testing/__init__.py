"""A cluster of production code in one process under one seed, and the judge of its promises.

A workload writes a history of what clients were told, and a checker judges it.

    cluster    `Cluster`: brokers, controllers and clients in virtual time, for pytest
    node, network, pipe, loop    its processes with their disks, its calls, its event loop
    history    the lines of a history: sends, outcomes, reads, seeks, faults
    workload   producers and consumers that use the public clients and write a history
    rules, facts    the promises, as pure functions over the facts of a history
    checker    judges a history; `python -m tidemark.testing.checker FILE` prints the verdicts

Programs import `Cluster` from here, which needs the server rooms, and the names that the modules
say. The room promises that the code under test is production's, that one seed is one run, and that
every history of a correct cluster passes. A broken promise is named with the lines that show it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.testing.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        return importlib.import_module("tidemark.testing.cluster").Cluster
    raise AttributeError(f"module 'tidemark.testing' has no attribute {name!r}")
