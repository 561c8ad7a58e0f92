"""Errors that only a client raises; those of a server's answers are in `tidemark.errors`.

`kind_of` sorts all of them by what a transactional producer's caller has to do (KIP-1050).
"""

from __future__ import annotations

from enum import Enum

from tidemark.errors import (
    ClusterAuthorizationFailedError,
    ConfigError,
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RequestTimedOutError,
    TidemarkError,
    UnsupportedVersionError,
)
from tidemark.types import TopicPartition


class BufferExhaustedError(TidemarkError):
    """The producer's buffer.memory is full and did not drain in max.block.ms."""

    retriable = True


class ClientClosedError(TidemarkError):
    """The client was closed before this was done."""


class ClientForkedError(ClientClosedError):
    """A client was used in a process forked after it was made."""


class CommitFailedError(TidemarkError):
    """Offsets were not committed: the consumer is not the group's member any more."""


class IllegalStateError(TidemarkError):
    """The call does not fit the state of the client, such as a send outside of a transaction."""


class TransactionAbortedError(TidemarkError):
    """The record was not acknowledged when its transaction was aborted, or had to be."""


class TransactionInDoubtError(RequestTimedOutError):
    """A commit was sent, and its answer did not come: call commit_transaction() again.

    The transaction is committed or not, and nothing but the coordinator knows it.
    """

    retriable = False


class ErrorKind(Enum):
    """Kinds of errors of a transactional producer, by the next step of its caller (KIP-1050)."""

    RETRIABLE = "The client repeats it; it is raised when the time is up. The same call may succeed"
    ABORTABLE = "abort_transaction(), then begin again with the same producer"
    RECOVERABLE = "It is fenced or closed: close it, and make another one if no other took over"
    CONFIGURATION = "No repetition helps: change the settings, or the cluster"


_RECOVERABLE = (
    ClientClosedError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
)
_CONFIGURATION = (
    ClusterAuthorizationFailedError,
    ConfigError,
    InvalidTransactionTimeoutError,
    UnsupportedVersionError,
)


def kind_of(error: BaseException) -> ErrorKind:
    """The kind of an error of a transactional producer. An unforeseen one is ABORTABLE."""
    if isinstance(error, _RECOVERABLE):
        return ErrorKind.RECOVERABLE
    if isinstance(error, _CONFIGURATION):
        return ErrorKind.CONFIGURATION
    if isinstance(error, TidemarkError) and (
        error.retriable or isinstance(error, TransactionInDoubtError)
    ):
        return ErrorKind.RETRIABLE
    return ErrorKind.ABORTABLE


class NoOffsetForPartitionError(TidemarkError):
    """The partition has no position and auto_offset_reset is "none": seek first."""


class CorruptBatchError(CorruptMessageError):
    """A fetched batch is damaged; its partition stops until the caller seeks.

    `offset` is the first one that can not be read. Seek to it to fetch the batch again, or beyond
    it to go on without its records.
    """

    retriable = False

    def __init__(self, topic_partition: TopicPartition, offset: int, problem: str) -> None:
        super().__init__(
            f"{topic_partition} at offset {offset}: {problem}; seek to it to fetch it again, or"
            " beyond it to go on without its records"
        )
        self.topic_partition = topic_partition
        self.offset = offset


class LogTruncationError(OffsetOutOfRangeError):
    """Records that were read are no longer in the log (KIP-320); auto_offset_reset is "none".

    An unclean election cut them off. `diverging_offset` is the first offset from which the log may
    differ from what was read, `diverging_epoch` the leader epoch before it. Both are None if the
    leader does not know them.
    """

    def __init__(
        self, topic_partition: TopicPartition, offset: int, diverging: tuple[int, int] | None
    ) -> None:
        self.diverging_epoch: int | None = None if diverging is None else diverging[0]
        self.diverging_offset: int | None = None if diverging is None else diverging[1]
        where = f"{topic_partition} at offset {offset}: the log was truncated; "
        super().__init__(
            f"{where}its leader does not know where it differs from what was read: seek to the"
            " offset at which to begin"
            if diverging is None
            else f"{where}it agrees with what was read up to offset {self.diverging_offset}, of"
            f" leader epoch {self.diverging_epoch}: seek there to go on"
        )
        self.topic_partition = topic_partition
        self.offset = offset


class TopicRecreatedError(InconsistentTopicIdError):
    """The topic was deleted, and another one has its name; auto_offset_reset is "none".

    The position means nothing in the new topic: seek.
    """

    retriable = False

    def __init__(self, topic_partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{topic_partition} at offset {offset}: the topic was deleted and made anew; seek to"
            " the offset at which to begin in the new one"
        )
        self.topic_partition = topic_partition
        self.offset = offset
