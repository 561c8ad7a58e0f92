"""The broker's id, and the epoch of its latest registration (KIP-631)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BrokerIdentity:
    """One per broker, shared by everything that sends requests in its name.

    `epoch` is -1 before the first registration; only `BrokerLifecycle` sets it.
    """

    id: int
    epoch: int = -1
