"""Credentials of the S3 storage manager: keys from the settings, else the machine's or pod's role.

A role is asked for over the network, by requests with the deadline of the call that needs it. Its
failure may pass, like an outage of the store: copies are kept and tried again.
"""

from __future__ import annotations

from typing import Any

from minio.credentials import Credentials, IamAwsProvider, Provider, StaticProvider

from tidemark.errors import ConfigError
from tiering.errors import RetriableRemoteStorageError


def credentials_of(access_key: str, secret_key: str, session_token: str, pool: Any) -> Any:
    """Returns the provider of the settings. Raises ConfigError if they are incomplete."""
    if bool(access_key) != bool(secret_key):
        missing = "secret.key" if access_key else "access.key"
        raise ConfigError(
            f"rsm.config.{missing} is missing: set both keys, or none to use the machine's or "
            "pod's IAM role"
        )
    if access_key:
        return StaticProvider(access_key, secret_key, session_token or None)
    return RoleProvider(IamAwsProvider(http_client=pool))


class RoleProvider:
    """The credentials of an IAM role; an error says what is missing."""

    def __init__(self, role: Provider) -> None:
        self._role = role

    def retrieve(self) -> Credentials:
        """Returns the credentials, asked for again when they expire."""
        try:
            return self._role.retrieve()
        except Exception as error:  # of the answer's text, too
            raise RetriableRemoteStorageError(
                "no credentials for the store: the machine's or pod's IAM role gives none "
                f"({type(error).__name__}: {error}); attach a role that may use the bucket, or set "
                "rsm.config.access.key and rsm.config.secret.key"
            ) from error
