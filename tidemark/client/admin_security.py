"""Administration of ACLs and of the users of SCRAM."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from tidemark.errors import raise_for
from tidemark.security import acls, scram
from tidemark.security.acls import AclBinding, AclFilter
from tidemark.surroundings import surroundings
from tidemark.v1 import acl_pb2, admin_pb2

_ITERATIONS = 4_096


class AsyncSecurityAdmin:
    """The ACLs and users of a cluster; `AsyncAdmin.security`."""

    def __init__(self, ask: Callable[..., Coroutine[Any, Any, Any]], timeout_ms: int) -> None:
        """`ask` sends a request to any node, and tries again for `timeout_ms`."""
        self._ask = ask
        self._timeout_ms = timeout_ms

    async def create_acls(self, bindings: Sequence[AclBinding]) -> None:
        """Adds entries; one that is there already is left as it is.

        Raises the first entry's InvalidRequestError, SecurityDisabledError where nodes have no
        authorizer, and UnsupportedVersionError while metadata.version is too low.
        """
        request = admin_pb2.CreateAclsRequest(
            creations=map(acls.to_wire, bindings), timeout_ms=self._timeout_ms
        )
        answer = await self._ask(request, admin_pb2.CreateAclsResponse)
        for result in answer.results:
            raise_for(result.error_code, result.error_message)

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Removes what the filters select, and returns it. Raises as `create_acls`."""
        request = admin_pb2.DeleteAclsRequest(
            filters=map(acls.filter_to_wire, filters), timeout_ms=self._timeout_ms
        )
        answer = await self._ask(request, admin_pb2.DeleteAclsResponse)
        for result in answer.results:
            raise_for(result.error_code, result.error_message)
        return [acls.from_wire(one) for result in answer.results for one in result.matching]

    async def describe_acls(self, chosen: AclFilter | None = None) -> list[AclBinding]:
        """The entries that the filter selects; None: all. Raises SecurityDisabledError."""
        wanted = acls.filter_to_wire(chosen or AclFilter())
        request = admin_pb2.DescribeAclsRequest(filter=wanted)
        answer = await self._ask(request, admin_pb2.DescribeAclsResponse)
        return [acls.from_wire(one) for one in answer.bindings]

    async def set_scram_password(
        self, user: str, password: str, *, iterations: int = _ITERATIONS
    ) -> None:
        """Adds a user, or changes the password; only a salted hash of it is sent.

        Raises UnacceptableCredentialError.
        """
        salt = surroundings().random_bytes(16)
        upsertion = admin_pb2.AlterUserScramCredentialsRequest.Upsertion(
            name=user,
            mechanism=acl_pb2.SCRAM_SHA_512,
            iterations=iterations,
            salt=salt,
            salted_password=scram.salted(password, salt, iterations),
        )
        await self._alter_users(admin_pb2.AlterUserScramCredentialsRequest(upsertions=[upsertion]))

    async def delete_scram_user(self, user: str) -> None:
        """Removes a user. Raises ResourceNotFoundError."""
        deletion = admin_pb2.AlterUserScramCredentialsRequest.Deletion(
            name=user, mechanism=acl_pb2.SCRAM_SHA_512
        )
        await self._alter_users(admin_pb2.AlterUserScramCredentialsRequest(deletions=[deletion]))

    async def _alter_users(self, request: admin_pb2.AlterUserScramCredentialsRequest) -> None:
        request.timeout_ms = self._timeout_ms
        answer = await self._ask(request, admin_pb2.AlterUserScramCredentialsResponse)
        for result in answer.results:
            raise_for(result.error_code, result.error_message)

    async def describe_scram_users(self, users: Iterable[str] = ()) -> dict[str, int]:
        """Iterations by user; without `users`, of all. Raises ResourceNotFoundError."""
        request = admin_pb2.DescribeUserScramCredentialsRequest(users=users)
        answer = await self._ask(request, admin_pb2.DescribeUserScramCredentialsResponse)
        found: dict[str, int] = {}
        for result in answer.results:
            raise_for(result.error_code, result.error_message)
            found[result.user] = result.credential_infos[0].iterations
        return found


class SecurityAdmin:
    """The ACLs and users of a cluster; `Admin.security`. See AsyncSecurityAdmin for meanings and
    errors.
    """

    def __init__(
        self, core: AsyncSecurityAdmin, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._core = core
        self._run = run

    def create_acls(self, bindings: Sequence[AclBinding]) -> None:
        """Adds entries."""
        self._run(self._core.create_acls(bindings))

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Removes what the filters select, and returns it."""
        gone: list[AclBinding] = self._run(self._core.delete_acls(filters))
        return gone

    def describe_acls(self, chosen: AclFilter | None = None) -> list[AclBinding]:
        """The entries that the filter selects; None: all."""
        found: list[AclBinding] = self._run(self._core.describe_acls(chosen))
        return found

    def set_scram_password(
        self, user: str, password: str, *, iterations: int = _ITERATIONS
    ) -> None:
        """Adds a user, or changes the password."""
        self._run(self._core.set_scram_password(user, password, iterations=iterations))

    def delete_scram_user(self, user: str) -> None:
        """Removes a user."""
        self._run(self._core.delete_scram_user(user))

    def describe_scram_users(self, users: Iterable[str] = ()) -> dict[str, int]:
        """Iterations by user; without `users`, of all."""
        found: dict[str, int] = self._run(self._core.describe_scram_users(users))
        return found
