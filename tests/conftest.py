"""Fixtures that several rooms share, and one way of running Hypothesis: no deadlines, since a busy
machine must not make a correct property fail.
"""

from hypothesis import HealthCheck, settings

from tests.minio_fixture import object_store

__all__ = ["object_store"]

settings.register_profile(
    "tidemark", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("tidemark")
