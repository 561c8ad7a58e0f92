"""Plans in a file: the same records again, held while they are wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.direct.store import FakeTier, tiered
from tests.spark.direct.test_reading import offsets_of
from tidemark.errors import ConfigError
from tidemark.spark import take_snapshot
from tidemark.spark.direct.snapshots import held
from tidemark.spark.options import parse_options
from tidemark.spark.planning import plan


def given(fake: FakeTier, **more: str) -> dict[str, str]:
    return {"bootstrap.servers": fake.bootstrap_servers, "subscribe": "t", **more}


def test_a_snapshot_reads_the_same_records_from_the_same_segments(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with tiered() as fake:
        with take_snapshot(path, given(fake)):
            planned = plan(fake.options())
            asked = len(fake.asked)
            options = parse_options(
                {"bootstrap.servers": fake.bootstrap_servers, "snapshot": str(path)}
            )
            again = plan(options)
            assert len(fake.asked) == asked
            assert [(e.start, e.end, e.topic_id, e.leader_epoch) for e in again] == [
                (e.start, e.end, e.topic_id, e.leader_epoch) for e in planned
            ]
            fake.log.append([fake_record(200)])
            fake.segments.clear()  # the log goes on, and other segments take its place
            assert offsets_of(fake, again) == list(range(200))
            assert {name for name, *_ in fake.store.ranges} == {f"segment-{n}" for n in range(3)}
        lease = again[0].direct.lease if again[0].direct else None
        ended = fake.asked[-1]
        assert lease and (ended.lease_id, ended.lease_ms, ended.lease_only) == (lease.id, 0, True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def fake_record(offset: int) -> Any:
    from tests.spark.fake_log import records

    return records(offset, 1)[0]


def test_leases_are_renewed_within_the_block_and_failures_do_not_end_it() -> None:
    import threading

    from tidemark.errors import NetworkError

    renewed = threading.Semaphore(0)

    def renew(*_: object) -> None:
        renewed.release()
        raise NetworkError("away")

    with tiered() as fake:
        options = fake.options(leaseMs="1000")
        with held(options, plan(options), renew):
            assert renewed.acquire(timeout=30) and renewed.acquire(timeout=30)
        assert not [each for each in threading.enumerate() if each.name == "tidemark-snapshot"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "take_snapshot writes it"),
        ("{", "is no plan"),
        ("[]", "is no plan"),
        ('{"version": 2}', "version 2"),
        (
            '{"version": 1, "isolation.level": "x", "slices": [], "crc": 223132457}',
            "give isolation",
        ),
        ('{"version": 1, "isolation.level": "x", "slices": [{}], "crc": 3936877308}', "is no plan"),
    ],
)
def test_a_file_that_is_no_plan_is_an_error(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    options = parse_options({"bootstrap.servers": "h:1", "snapshot": str(path)})
    with pytest.raises(ConfigError, match=said):
        plan(options)


def test_a_plan_whose_file_was_damaged_is_an_error(tmp_path: Path) -> None:
    """An end that is another number reads other records, and no batch can contradict it."""
    path = tmp_path / "plan.json"
    with tiered() as fake, take_snapshot(path, given(fake)):
        sound = path.read_text()
        for old, new in (('"end": 200', '"end": 190'), ('"start": 150', '"start": 151')):
            assert old in sound
            path.write_text(sound.replace(old, new))
            options = {"bootstrap.servers": fake.bootstrap_servers, "snapshot": str(path)}
            with pytest.raises(ConfigError, match="damaged"):
                plan(parse_options(options))


def test_a_snapshot_goes_with_no_option_that_it_would_not_obey(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="subscribe has no effect with snapshot"):
        parse_options({"bootstrap.servers": "h:1", "snapshot": "x", "subscribe": "t"})
    with pytest.raises(ConfigError, match="snapshot has no effect in a stream"):
        parse_options({"bootstrap.servers": "h:1", "snapshot": "x"}, is_stream=True)
    both = {"bootstrap.servers": "h:1", "snapshot": "x"}
    with pytest.raises(ConfigError, match="not made of another"), take_snapshot("y", both):
        pass
    with tiered() as fake, take_snapshot(tmp_path / "p", given(fake, direct="false")):
        content = json.loads((tmp_path / "p").read_text())
        assert not any("pieces" in each for each in content["slices"])
