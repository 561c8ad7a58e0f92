"""Fixtures that several rooms share, and one way of running Hypothesis: no deadlines, since a busy
machine must not make a correct property fail, and the same examples in every run, so that a failure
comes from a change. With TIDEMARK_SOAK=1 the examples are new ones each time.
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
