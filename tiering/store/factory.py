"""The factory of remote storage managers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from tidemark.config import ServerConfig
from tidemark.errors import ConfigError
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import RemoteStorageManager
from tiering.store.s3 import S3RemoteStorageManager, settings_with_environment


def create_storage_manager(
    config: ServerConfig, environment: Mapping[str, str] | None = None
) -> RemoteStorageManager:
    """Creates and configures the manager that `remote.log.storage.manager.class.name` names.

    Names are `directory` (rsm.config.dir), `s3` (rsm.config.bucket, ... or TIDEMARK_S3_* and AWS_*
    variables), or `module:Class`. An empty name is `directory` if rsm.config.dir is set, `s3` if a
    bucket is. Raises ConfigError.
    """
    settings = dict(config.rsm_config)
    name = config.remote_log_storage_manager_class_name
    s3_settings = settings_with_environment(
        settings, os.environ if environment is None else environment
    )
    if not name:
        name = "directory" if "dir" in settings else "s3" if "bucket" in s3_settings else ""
    manager: RemoteStorageManager
    if name == "directory":
        manager = DirectoryRemoteStorageManager()
    elif name == "s3":
        manager, settings = S3RemoteStorageManager(), s3_settings
    elif ":" in name:
        manager = _load(name)
    else:
        raise ConfigError(
            f"remote.log.storage.manager.class.name={name!r} is none of directory, s3, module:Class"
        )
    manager.configure(settings)
    return manager


def _load(name: str) -> RemoteStorageManager:
    module, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"remote.log.storage.manager.class.name={name!r}: {error}") from error
    if not isinstance(made, RemoteStorageManager):
        raise ConfigError(f"{name!r} lacks methods of tiering.store.manager.RemoteStorageManager")
    return made
