"""Errors of the coordinators: consumer groups (KIP-848) and transactions (KIP-98, KIP-890)."""

from __future__ import annotations

from tidemark.errors.base import ApiError, ErrorCode


class OffsetMetadataTooLargeError(ApiError):
    """The metadata of a committed offset is longer than offset.metadata.max.bytes."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgressError(ApiError):
    """The coordinator reads its records after a change of leader; try again."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailableError(ApiError):
    """The coordinator is not available at the moment; try again."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True


class NotCoordinatorError(ApiError):
    """Another broker is the coordinator; find it again."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True


class IllegalGenerationError(ApiError):
    """The generation, or member epoch, is not the group's."""

    code = ErrorCode.ILLEGAL_GENERATION


class InvalidGroupIdError(ApiError):
    """The group id is empty or not valid."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberIdError(ApiError):
    """The group has no such member; it has to join again."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(ApiError):
    """The session timeout is not within the bounds that the broker allows."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(ApiError):
    """The group rebalances; join again."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class InvalidCommitOffsetSizeError(ApiError):
    """The offsets of one commit are too large for a batch; commit fewer at once."""

    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class InvalidProducerIdMappingError(ApiError):
    """The producer id is not that of the transactional id."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(ApiError):
    """The transaction timeout is above transaction.max.timeout.ms, or not positive."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(ApiError):
    """The last transaction of this transactional id is still being ended; try again."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS
    retriable = True


class OperationNotAttemptedError(ApiError):
    """Not tried, because another part of the request failed."""

    code = ErrorCode.OPERATION_NOT_ATTEMPTED


class NonEmptyGroupError(ApiError):
    """The group has members; stop them first."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(ApiError):
    """There is no group of this id."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class GroupMaxSizeReachedError(ApiError):
    """The group has as many members as group.consumer.max.size allows."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceIdError(ApiError):
    """Another member has taken over this instance id."""

    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopicError(ApiError):
    """Members of the group subscribe to the topic; stop them first."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class UnstableOffsetCommitError(ApiError):
    """A transaction that commits this offset is not ended yet; try again."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    retriable = True


class TransactionalIdNotFoundError(ApiError):
    """There is no transaction of this transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class FencedMemberEpochError(ApiError):
    """The member epoch is not the group's; give up all partitions and join again."""

    code = ErrorCode.FENCED_MEMBER_EPOCH


class UnreleasedInstanceIdError(ApiError):
    """Another member has this instance id; it must leave first."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignorError(ApiError):
    """The broker has no such assignor."""

    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class StaleMemberEpochError(ApiError):
    """The member epoch is old; commit again after the next heartbeat."""

    code = ErrorCode.STALE_MEMBER_EPOCH


class TransactionAbortableError(ApiError):
    """The transaction has to be aborted; a new one may be begun then."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class InvalidRegularExpressionError(ApiError):
    """The pattern is no valid RE2 expression."""

    code = ErrorCode.INVALID_REGULAR_EXPRESSION
