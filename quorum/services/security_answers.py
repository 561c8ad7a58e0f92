"""DescribeAcls and DescribeUserScramCredentials, answered by any node from its image."""

from __future__ import annotations

from quorum.controller.security import check_authorizer
from quorum.image import MetadataImage
from tidemark.config import ServerConfig
from tidemark.errors import ErrorCode
from tidemark.security import acls
from tidemark.v1 import acl_pb2, admin_pb2


def describe_acls(
    image: MetadataImage, config: ServerConfig, request: admin_pb2.DescribeAclsRequest
) -> admin_pb2.DescribeAclsResponse:
    """The bindings that the filter selects. Raises SecurityDisabledError, InvalidRequestError."""
    check_authorizer(config)
    wanted = acls.filter_from_wire(request.filter)
    found = sorted(binding for binding in image.acls.values() if wanted.selects(binding))
    return admin_pb2.DescribeAclsResponse(bindings=map(acls.to_wire, found))


def describe_scram_users(
    image: MetadataImage, request: admin_pb2.DescribeUserScramCredentialsRequest
) -> admin_pb2.DescribeUserScramCredentialsResponse:
    """Users and their iterations, nothing of their keys."""
    response = admin_pb2.DescribeUserScramCredentialsResponse()
    for name in sorted({*request.users} or image.scram_users):
        credential = image.scram_users.get(name)
        if credential is None:
            code = int(ErrorCode.RESOURCE_NOT_FOUND)
            message = f"there is no user {name}"
            response.results.add(user=name, error_code=code, error_message=message)  # type: ignore[arg-type]
            continue
        response.results.add(user=name).credential_infos.add(
            mechanism=acl_pb2.SCRAM_SHA_512, iterations=credential.iterations
        )
    return response
