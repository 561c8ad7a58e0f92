"""CreateAcls, DeleteAcls and AlterUserScramCredentials: who may do what, and who can log in.

Entries are records of the metadata log (KIP-801, KIP-900). Items of a request are independent, each
with its own error. An entry that is there already is not written again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from uuid import UUID

from quorum.controller.result import ControllerResult, check_level, check_operations
from quorum.image import MetadataImage
from quorum.image.image import SECURITY_LEVEL
from quorum.image.records import acl_record, scram_record
from tidemark.config import ServerConfig
from tidemark.errors import (
    ApiError,
    DuplicateResourceError,
    ResourceNotFoundError,
    SecurityDisabledError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
    set_error,
)
from tidemark.security import acls
from tidemark.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, credential_of
from tidemark.v1 import acl_pb2, admin_pb2
from tidemark.v1 import metadata_pb2 as pb

_Scram = admin_pb2.AlterUserScramCredentialsRequest
_SALTED_BYTES = 64  # of SHA-512


def create_acls(
    image: MetadataImage,
    config: ServerConfig,
    rng: random.Random,
    request: admin_pb2.CreateAclsRequest,
) -> ControllerResult[admin_pb2.CreateAclsResponse]:
    """Adds bindings. Raises SecurityDisabledError, UnsupportedVersionError."""
    check_level(image, SECURITY_LEVEL, "ACLs and users")
    check_authorizer(config)
    check_operations(len(request.creations))
    known = {*image.acls.values()}
    response = admin_pb2.CreateAclsResponse()
    result = ControllerResult(response)
    for creation in request.creations:
        answer = response.results.add()
        binding = acls.from_wire(creation)
        try:
            acls.check(binding)
        except ApiError as error:
            set_error(answer, error)
            continue
        if binding not in known:
            known.add(binding)
            acl_id = UUID(bytes=rng.randbytes(16), version=4)
            result.groups.append([acl_record(acl_id, binding)])
    return result


def delete_acls(
    image: MetadataImage, config: ServerConfig, request: admin_pb2.DeleteAclsRequest
) -> ControllerResult[admin_pb2.DeleteAclsResponse]:
    """Removes what filters select. Raises SecurityDisabledError, UnsupportedVersionError."""
    check_level(image, SECURITY_LEVEL, "ACLs and users")
    check_authorizer(config)
    response = admin_pb2.DeleteAclsResponse()
    gone: dict[UUID, None] = {}
    for chosen in request.filters:
        answer = response.results.add()
        try:
            wanted = acls.filter_from_wire(chosen)
        except ApiError as error:
            set_error(answer, error)
            continue
        for acl_id, binding in sorted(image.acls.items()):
            if acl_id not in gone and wanted.selects(binding):
                gone[acl_id] = None
                answer.matching.append(acls.to_wire(binding))
    check_operations(len(gone))
    return ControllerResult.each([acl_record(acl_id, None) for acl_id in gone], response)


def check_authorizer(config: ServerConfig) -> None:
    """Raises SecurityDisabledError where nothing would heed an ACL."""
    if not config.security.authorizer_class_name:
        raise SecurityDisabledError()


def alter_scram_credentials(
    image: MetadataImage, request: _Scram
) -> ControllerResult[admin_pb2.AlterUserScramCredentialsResponse]:
    """Sets and removes users. Raises UnsupportedVersionError."""
    check_level(image, SECURITY_LEVEL, "ACLs and users")
    check_operations(len(request.upsertions) + len(request.deletions))
    response = admin_pb2.AlterUserScramCredentialsResponse()
    result = ControllerResult(response)
    named: list[str] = [item.name for item in _items(request)]
    for item in _items(request):
        answer = response.results.add(user=item.name)
        try:
            if named.count(item.name) > 1:
                raise DuplicateResourceError(f"the request names {item.name} more than once")
            result.groups.append([_scram_record(image, item)])
        except ApiError as error:
            set_error(answer, error)
    return result


def _items(request: _Scram) -> Iterable[_Scram.Upsertion | _Scram.Deletion]:
    yield from request.upsertions
    yield from request.deletions


def _scram_record(
    image: MetadataImage, item: _Scram.Upsertion | _Scram.Deletion
) -> pb.MetadataRecord:
    if item.mechanism != acl_pb2.SCRAM_SHA_512:
        raise UnsupportedSaslMechanismError("users have SCRAM-SHA-512")
    if not item.name:
        raise UnacceptableCredentialError("a user's name is empty")
    if isinstance(item, _Scram.Deletion):
        if item.name not in image.scram_users:
            raise ResourceNotFoundError(f"there is no user {item.name}")
        return scram_record(item.name, None)
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredentialError(
            f"{item.iterations} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
    if not item.salt or len(item.salted_password) != _SALTED_BYTES:
        raise UnacceptableCredentialError(
            f"a salt, and a salted password of {_SALTED_BYTES} bytes are needed"
        )
    return scram_record(item.name, credential_of(item.salted_password, item.salt, item.iterations))
