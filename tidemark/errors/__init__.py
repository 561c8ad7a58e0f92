"""The error table: Kafka's names and numbers, one exception class each.

Source: org.apache.kafka.common.protocol.Errors. `tidemark.v1.ErrorCode` is the same table on the
wire; a test compares the two. Every room imports from here, and programs catch these classes.

    ErrorCode        the numbers
    TidemarkError    base of all errors that Tidemark raises
    ApiError         base of the errors that have a number
    ConfigError, StorageError, FatalError    errors of this process, without a number

An RPC answers with a code and a message. `error_for(code, message)` makes the exception from them,
and `code_of(error)` the code for the answer. `retriable` is true if the same request may succeed
when it is sent again. The docstring of an ApiError is its message where none is given.

The room promises that numbers and names never change, and that an unknown number becomes
UnknownServerError.
"""

from __future__ import annotations

from tidemark.errors.base import (
    ApiError as ApiError,
)
from tidemark.errors.base import (
    ConfigError as ConfigError,
)
from tidemark.errors.base import (
    ErrorCode as ErrorCode,
)
from tidemark.errors.base import (
    FatalError as FatalError,
)
from tidemark.errors.base import (
    StorageError as StorageError,
)
from tidemark.errors.base import (
    TidemarkError as TidemarkError,
)
from tidemark.errors.base import (
    code_of as code_of,
)
from tidemark.errors.base import (
    set_error as set_error,
)
from tidemark.errors.coordinators import (
    ConcurrentTransactionsError as ConcurrentTransactionsError,
)
from tidemark.errors.coordinators import (
    CoordinatorLoadInProgressError as CoordinatorLoadInProgressError,
)
from tidemark.errors.coordinators import (
    CoordinatorNotAvailableError as CoordinatorNotAvailableError,
)
from tidemark.errors.coordinators import (
    FencedInstanceIdError as FencedInstanceIdError,
)
from tidemark.errors.coordinators import (
    FencedMemberEpochError as FencedMemberEpochError,
)
from tidemark.errors.coordinators import (
    GroupIdNotFoundError as GroupIdNotFoundError,
)
from tidemark.errors.coordinators import (
    GroupMaxSizeReachedError as GroupMaxSizeReachedError,
)
from tidemark.errors.coordinators import (
    GroupSubscribedToTopicError as GroupSubscribedToTopicError,
)
from tidemark.errors.coordinators import (
    IllegalGenerationError as IllegalGenerationError,
)
from tidemark.errors.coordinators import (
    InvalidCommitOffsetSizeError as InvalidCommitOffsetSizeError,
)
from tidemark.errors.coordinators import (
    InvalidGroupIdError as InvalidGroupIdError,
)
from tidemark.errors.coordinators import (
    InvalidProducerIdMappingError as InvalidProducerIdMappingError,
)
from tidemark.errors.coordinators import (
    InvalidRegularExpressionError as InvalidRegularExpressionError,
)
from tidemark.errors.coordinators import (
    InvalidSessionTimeoutError as InvalidSessionTimeoutError,
)
from tidemark.errors.coordinators import (
    InvalidTransactionTimeoutError as InvalidTransactionTimeoutError,
)
from tidemark.errors.coordinators import (
    NonEmptyGroupError as NonEmptyGroupError,
)
from tidemark.errors.coordinators import (
    NotCoordinatorError as NotCoordinatorError,
)
from tidemark.errors.coordinators import (
    OffsetMetadataTooLargeError as OffsetMetadataTooLargeError,
)
from tidemark.errors.coordinators import (
    OperationNotAttemptedError as OperationNotAttemptedError,
)
from tidemark.errors.coordinators import (
    RebalanceInProgressError as RebalanceInProgressError,
)
from tidemark.errors.coordinators import (
    StaleMemberEpochError as StaleMemberEpochError,
)
from tidemark.errors.coordinators import (
    TransactionAbortableError as TransactionAbortableError,
)
from tidemark.errors.coordinators import (
    TransactionalIdNotFoundError as TransactionalIdNotFoundError,
)
from tidemark.errors.coordinators import (
    UnknownMemberIdError as UnknownMemberIdError,
)
from tidemark.errors.coordinators import (
    UnreleasedInstanceIdError as UnreleasedInstanceIdError,
)
from tidemark.errors.coordinators import (
    UnstableOffsetCommitError as UnstableOffsetCommitError,
)
from tidemark.errors.coordinators import (
    UnsupportedAssignorError as UnsupportedAssignorError,
)
from tidemark.errors.security import (
    ClusterAuthorizationFailedError as ClusterAuthorizationFailedError,
)
from tidemark.errors.security import (
    DuplicateResourceError as DuplicateResourceError,
)
from tidemark.errors.security import (
    GroupAuthorizationFailedError as GroupAuthorizationFailedError,
)
from tidemark.errors.security import (
    IllegalSaslStateError as IllegalSaslStateError,
)
from tidemark.errors.security import (
    ResourceNotFoundError as ResourceNotFoundError,
)
from tidemark.errors.security import (
    SaslAuthenticationError as SaslAuthenticationError,
)
from tidemark.errors.security import (
    SecurityDisabledError as SecurityDisabledError,
)
from tidemark.errors.security import (
    TopicAuthorizationFailedError as TopicAuthorizationFailedError,
)
from tidemark.errors.security import (
    TransactionalIdAuthorizationFailedError as TransactionalIdAuthorizationFailedError,
)
from tidemark.errors.security import (
    UnacceptableCredentialError as UnacceptableCredentialError,
)
from tidemark.errors.security import (
    UnsupportedSaslMechanismError as UnsupportedSaslMechanismError,
)


class UnknownServerError(ApiError):
    """The server met an error it has no name for; its log tells more."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetOutOfRangeError(ApiError):
    """The offset is not within the partition's range of offsets."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessageError(ApiError):
    """A record batch failed its CRC check or is malformed."""

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True


class UnknownTopicOrPartitionError(ApiError):
    """This server does not host this topic and partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True


class LeaderNotAvailableError(ApiError):
    """The partition has no leader at the moment."""

    code = ErrorCode.LEADER_NOT_AVAILABLE
    retriable = True


class NotLeaderOrFollowerError(ApiError):
    """This node does not lead (or follow) the partition; refresh the metadata."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class RequestTimedOutError(ApiError):
    """The request was not completed in its time; its outcome is unknown."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class BrokerNotAvailableError(ApiError):
    """The node is not available, or is shutting down."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class ReplicaNotAvailableError(ApiError):
    """The replica is not available on this node."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE
    retriable = True


class MessageTooLargeError(ApiError):
    """A record batch is larger than max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class NetworkError(ApiError):
    """The connection broke before an answer came."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class InvalidTopicError(ApiError):
    """The topic's name is not valid, or clients may not write to it."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class RecordListTooLargeError(ApiError):
    """The record batches are larger than a segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotEnoughReplicasError(ApiError):
    """Fewer in-sync replicas than min.insync.replicas, or a change of voters that would leave no
    healthy majority. Nothing was written.
    """

    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class NotEnoughReplicasAfterAppendError(ApiError):
    """Written, but to fewer in-sync replicas than min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    retriable = True


class InvalidRequiredAcksError(ApiError):
    """acks is none of 0, 1 and -1 (all)."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class InvalidTimestampError(ApiError):
    """The record's timestamp is out of the accepted range."""

    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedVersionError(ApiError):
    """This version of the request or feature is not supported."""

    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExistsError(ApiError):
    """A topic of this name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(ApiError):
    """The number of partitions is not valid."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(ApiError):
    """The replication factor is below 1 or above the number of usable brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(ApiError):
    """The manual replica assignment is not valid."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfigError(ApiError):
    """A setting is unknown or its value is not valid."""

    code = ErrorCode.INVALID_CONFIG


class NotControllerError(ApiError):
    """This node is not the active controller."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True


class InvalidRequestError(ApiError):
    """The request contradicts itself or the protocol."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedForMessageFormatError(ApiError):
    """The record format does not support this."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class PolicyViolationError(ApiError):
    """The request violates a configured policy."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumberError(ApiError):
    """The producer's sequence number has a gap."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceNumberError(ApiError):
    """The producer's sequence number was used before."""

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpochError(ApiError):
    """The producer's epoch is old: another one took over."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnStateError(ApiError):
    """The transaction is in a state that does not allow this."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFencedError(ApiError):
    """Another transaction coordinator with a newer epoch has taken over."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class KafkaStorageError(ApiError):
    """The log directory failed; see the node's log."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class LogDirNotFoundError(ApiError):
    """The log directory is not configured on this node."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class UnknownProducerIdError(ApiError):
    """Nothing is known of this producer id here."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class ReassignmentInProgressError(ApiError):
    """A reassignment of this partition is in progress."""

    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class InvalidFetchSessionEpochError(ApiError):
    """The fetch session epoch is not valid."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True


class FencedLeaderEpochError(ApiError):
    """The leader epoch of the request is older than the node's."""

    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True


class UnknownLeaderEpochError(ApiError):
    """The leader epoch of the request is newer than the node's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class UnsupportedCompressionTypeError(ApiError):
    """The compression type is not supported here."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class StaleBrokerEpochError(ApiError):
    """The broker epoch is old: the broker registered anew."""

    code = ErrorCode.STALE_BROKER_EPOCH


class OffsetNotAvailableError(ApiError):
    """The new leader's high watermark has not caught up yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True


class PreferredLeaderNotAvailableError(ApiError):
    """The preferred leader can not lead now."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    retriable = True


class EligibleLeadersNotAvailableError(ApiError):
    """No eligible leader is available."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    retriable = True


class ElectionNotNeededError(ApiError):
    """The partition needs no election."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(ApiError):
    """There is no reassignment of this partition."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class InvalidRecordError(ApiError):
    """A record failed validation; the batch was refused."""

    code = ErrorCode.INVALID_RECORD


class ThrottlingQuotaExceededError(ApiError):
    """A quota is exceeded."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    retriable = True


class ProducerFencedError(ApiError):
    """A newer producer with the same transactional id exists."""

    code = ErrorCode.PRODUCER_FENCED


class InconsistentVoterSetError(ApiError):
    """The voter is not in the quorum's voter set."""

    code = ErrorCode.INCONSISTENT_VOTER_SET


class InvalidUpdateVersionError(ApiError):
    """The partition epoch of the request is not current."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class FeatureUpdateFailedError(ApiError):
    """The feature could not be updated."""

    code = ErrorCode.FEATURE_UPDATE_FAILED


class SnapshotNotFoundError(ApiError):
    """The snapshot does not exist here (any more)."""

    code = ErrorCode.SNAPSHOT_NOT_FOUND


class PositionOutOfRangeError(ApiError):
    """The byte position is not within the snapshot."""

    code = ErrorCode.POSITION_OUT_OF_RANGE


class UnknownTopicIdError(ApiError):
    """This server does not host this topic id."""

    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True


class DuplicateBrokerRegistrationError(ApiError):
    """A live broker with this node id is registered: is another process using node.id?"""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class BrokerIdNotRegisteredError(ApiError):
    """The broker id is not registered."""

    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class InconsistentTopicIdError(ApiError):
    """The log's topic id does not match the request's."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID
    retriable = True


class InconsistentClusterIdError(ApiError):
    """The request's cluster id is not this cluster's: it reached another cluster."""

    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class IneligibleReplicaError(ApiError):
    """A new ISR holds a fenced, shutting down or restarted replica."""

    code = ErrorCode.INELIGIBLE_REPLICA


class NewLeaderElectedError(ApiError):
    """The change completed a reassignment and elected another leader."""

    code = ErrorCode.NEW_LEADER_ELECTED


class OffsetMovedToTieredStorageError(ApiError):
    """The offset is no longer on the leader's local disk but in the tier."""

    code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


class InvalidRegistrationError(ApiError):
    """The broker's registration is not valid."""

    code = ErrorCode.INVALID_REGISTRATION


class InvalidVoterKeyError(ApiError):
    """The voter id or directory id is not the receiver's."""

    code = ErrorCode.INVALID_VOTER_KEY


class DuplicateVoterError(ApiError):
    """The voter is in the voter set already."""

    code = ErrorCode.DUPLICATE_VOTER


class VoterNotFoundError(ApiError):
    """The voter is not in the voter set."""

    code = ErrorCode.VOTER_NOT_FOUND


_CLASSES: dict[int, type[ApiError]] = {cls.code: cls for cls in ApiError.__subclasses__()}


def error_for(code: int, message: str = "") -> ApiError:
    """The exception for a wire code other than NONE; UnknownServerError if the code is not in the
    table.
    """
    known = _CLASSES.get(code)
    if known is None:
        return UnknownServerError(f"error code {code} {message}".rstrip())
    return known(message)


def raise_for(code: int, message: str = "") -> None:
    """Raises the exception of `code`; does nothing for NONE."""
    if code != ErrorCode.NONE:
        raise error_for(code, message)
