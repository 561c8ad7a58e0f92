"""`import tidemark` loads nothing heavy, and the client compiles no kernel when it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("grpc", "numba", "numpy", "pyarrow", "pyspark", "pandas", "google.protobuf")


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return set(done.stdout.decode().split())


@pytest.mark.parametrize(
    "code",
    [
        "import tidemark",
        "from tidemark import TopicPartition, errors",
        "import tidemark; dir(tidemark)",
        "import tidemark.client",
        "import tidemark.cli.main",
    ],
)
def test_importing_tidemark_loads_nothing_heavy(code: str) -> None:
    assert loaded_after(code) == set()


def test_the_client_loads_neither_arrow_nor_numba() -> None:
    code = "from tidemark import Admin, Consumer, NewTopic, Producer, AsyncProducer, AsyncConsumer"
    assert loaded_after(code) == {"grpc", "google.protobuf"}


def test_every_exported_name_resolves() -> None:
    import tidemark
    import tidemark.client

    for module in (tidemark, tidemark.client):
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError):
            module.nothing_of_this_name  # noqa: B018
