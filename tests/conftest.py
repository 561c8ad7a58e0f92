"""Fixtures that several rooms share."""

from tests.minio_fixture import object_store

__all__ = ["object_store"]
