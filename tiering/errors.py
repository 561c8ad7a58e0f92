"""Errors of the remote storage and the remote log metadata, named as KIP-405's exceptions.

They are `ApiError`s, so that a failed read of the tier reaches a client with a code of Kafka's
table. The code is retriable if the failure may pass by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.errors import (
    ApiError,
    CorruptMessageError,
    ReplicaNotAvailableError,
    ResourceNotFoundError,
    ThrottlingQuotaExceededError,
    TidemarkError,
    UnknownServerError,
)


class RemoteStorageError(UnknownServerError):
    """The remote storage or the remote log metadata failed; the node's log says why."""


class RetriableRemoteStorageError(ReplicaNotAvailableError):
    """The remote storage does not answer at the moment (overload, time-out, broken connection);
    try again.
    """


class RemoteResourceNotFoundError(ResourceNotFoundError):
    """The remote storage or the remote log metadata has no such segment or index."""


class CorruptRemoteObjectError(CorruptMessageError):
    """A remote object contradicts its checksums; other copies of the data are not affected."""


class RemoteStorageNotReadyError(ReplicaNotAvailableError):
    """The remote log metadata of the partition is not read to its end yet; try again."""


class RemoteReadBusyError(ThrottlingQuotaExceededError):
    """Too many reads of the tier are under way (remote.log.reader.max.pending.tasks); try again."""


class NoTierError(ReplicaNotAvailableError):
    """The node has no tier, and the record is in one: set remote.log.storage.system.enable=true on
    it. Clients try again, until a node with the tier leads.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is in the tier, and this node has none: set"
            " remote.log.storage.system.enable=true in its server.properties"
        )


TRANSIENT: tuple[type[ApiError], ...] = (
    RetriableRemoteStorageError,
    RemoteStorageNotReadyError,
    RemoteReadBusyError,
)
"""Errors after which a task keeps its work and retries it after a wait."""


@contextmanager
def plugin_errors_typed() -> Iterator[None]:
    """Translates what a plug-in raises beyond its protocol into RemoteStorageError."""
    try:
        yield
    except (TidemarkError, OSError):
        raise
    except Exception as error:
        raise RemoteStorageError(f"the plug-in raised {error!r}") from error
