"""Fixtures that several rooms share, and one profile for Hypothesis.

It has no deadlines: a busy machine must not fail a correct property. It runs the same examples
every time, so that a failure comes from a change. With TIDEMARK_SOAK=1 the examples are new ones
each time.
"""

import os

from hypothesis import HealthCheck, settings

from tests.minio_fixture import object_store

__all__ = ["object_store"]

settings.register_profile(
    "tidemark",
    deadline=None,
    derandomize=os.environ.get("TIDEMARK_SOAK") != "1",
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("tidemark")
