"""Per-log work on a small thread pool."""

from __future__ import annotations

import threading

import pytest

from commitlog.disk.threads import work_off


@pytest.mark.parametrize("threads", [1, 3])
def test_everything_is_done_once_in_no_more_threads_than_are_allowed(threads: int) -> None:
    lock, done, names = threading.Lock(), [], set()

    def work(item: tuple[int, int]) -> None:
        with lock:
            done.append(item)
            names.add(threading.current_thread().name)

    queues = [[(disk, number) for number in range(200)] for disk in range(2)]
    work_off([*queues, []], work, threads, "test-work")
    assert sorted(done) == [item for queue in queues for item in queue]
    assert len(names) <= 2 * threads


def test_one_disk_does_not_wait_for_another() -> None:
    other_is_done = threading.Event()

    def work(item: str) -> None:
        if item == "slow":
            assert other_is_done.wait(10)
        else:
            other_is_done.set()

    work_off([["slow"], ["fast"]], work, 1, "test-work")


def test_one_thread_on_one_disk_is_the_callers() -> None:
    seen: list[threading.Thread] = []
    work_off([[1, 2]], lambda _: seen.append(threading.current_thread()), 1, "test-work")
    assert seen == [threading.current_thread()] * 2


def test_the_first_error_ends_the_work() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise ValueError("the disk")
        done.append(item)

    with pytest.raises(ValueError, match="the disk"):
        work_off([range(1, 10)], work, 1, "test-work")
    assert done == [1, 2]
    with pytest.raises(ValueError, match="the disk"):
        work_off([range(3, 10), range(20, 30)], work, 2, "test-work")
