"""Errors of authentication and authorization."""

from __future__ import annotations

from tidemark.errors.base import ApiError, ErrorCode


class ClusterAuthorizationFailedError(ApiError):
    """Not authorised for this operation on the cluster."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class ResourceNotFoundError(ApiError):
    """The resource does not exist."""

    code = ErrorCode.RESOURCE_NOT_FOUND


class DuplicateResourceError(ApiError):
    """The resource exists already."""

    code = ErrorCode.DUPLICATE_RESOURCE


class TopicAuthorizationFailedError(ApiError):
    """Not authorised for this operation on the topic: ask an administrator for an ACL."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationFailedError(ApiError):
    """Not authorised for this operation on the group: ask an administrator for an ACL."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class TransactionalIdAuthorizationFailedError(ApiError):
    """Not authorised for this operation on the transactional id: ask an administrator."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class SecurityDisabledError(ApiError):
    """The node has no authorizer: set authorizer.class.name=StandardAuthorizer."""

    code = ErrorCode.SECURITY_DISABLED


class SaslAuthenticationError(ApiError):
    """The name, the password or the token is wrong."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class UnsupportedSaslMechanismError(ApiError):
    """The listener does not take this mechanism of login."""

    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslStateError(ApiError):
    """The message does not belong to this step of a login."""

    code = ErrorCode.ILLEGAL_SASL_STATE


class UnacceptableCredentialError(ApiError):
    """The credential is not acceptable."""

    code = ErrorCode.UNACCEPTABLE_CREDENTIAL
