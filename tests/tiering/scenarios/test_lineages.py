"""KIP-405, "follower fetch scenarios" 3 to 5: histories that part, with the answers to consumers.

The KIP's consumer names an epoch with its fetch. Ours names the epoch of the record before its
position, as a follower does; "rejected" is a LogTruncationError that says where the logs part.
"""

from __future__ import annotations

import asyncio

from tests.tiering.scenarios.table import A, B, Row, Table, row, scenario
from tidemark.client.errors import LogTruncationError
from tidemark.errors import ErrorCode


async def parts_at(table: Table, node: int, offset: int, epoch: int) -> tuple[int, int]:
    """Reads on at `offset` after a record of `epoch`. Returns the (offset, epoch) that the error
    tells: where the logs part."""
    error = await table.consume(node, offset, epoch)
    assert isinstance(error, LogTruncationError), error
    assert error.offset == offset
    assert error.diverging_offset is not None
    assert error.diverging_epoch is not None
    return error.diverging_offset, error.diverging_epoch


async def answers(table: Table, node: int, expected: dict[tuple[int, int], list[Row]]) -> None:
    """Checks the rows for each (offset, epoch of the record before it)."""
    for (offset, epoch), rows in expected.items():
        assert await table.consume(node, offset, epoch) == rows, (offset, epoch)


def test_scenario_3_both_brokers_fail_and_the_one_that_lost_its_tail_leads() -> None:
    """A copied [0, 1] of epoch 0. B lost msg 1 and msg 2, leads, and copies [1, 1] of epoch 1."""

    async def test(table: Table) -> None:
        table.begin()
        await table.append(A, 0)
        await table.settle()
        table.log(B).flush()
        await table.append(A, 1)
        table.roll(A)
        await table.append(A, 2)
        await table.settle()
        await table.copy(A)
        assert table.remote() == [(0, 1, [(0, 0)])]

        await table.stop(A)
        await table.stop(B, clean=False)
        table.start(B, remote_log_storage_system_enable="true")
        table.lead(B)
        assert table.rows(B) == [row(0, 0)]
        table.roll(B)
        await table.append(B, 3)
        table.change(isr=(B,))
        assert table.rows(B) == [row(0, 0), row(1, 1, message=3)]
        assert table.epochs(B) == [(0, 0), (1, 1)]

        table.start(A, remote_log_storage_system_enable="true")
        await table.settle()
        assert table.rows(A) == table.rows(B)
        assert table.epochs(A) == table.epochs(B)

        table.roll(B)
        await table.append(B, 4)
        await table.settle()
        table.roll(B)
        await table.copy(B)
        assert (0, 1, [(0, 0)]) in table.remote()
        assert (1, 1, [(1, 1)]) in table.remote()

        table.drop_local(B, below=3)
        first, second, third = row(0, 0), row(1, 1, message=3), row(2, 1, message=4)
        assert await table.consume(B, 0) == [first], "the segment [0, 1] serves msg 0 alone"
        await answers(table, B, {(1, -1): [second], (1, 0): [second], (2, 1): [third], (3, 1): []})
        assert await parts_at(table, B, 2, 0) == (1, 0)
        assert await parts_at(table, B, 3, 0) == (1, 0)
        for offset in (0, 2, 3):
            assert await table.refusal(B, offset, 0) is ErrorCode.FENCED_LEADER_EPOCH
            assert await table.refusal(B, offset, 2) is ErrorCode.UNKNOWN_LEADER_EPOCH

    scenario(test)


def test_scenario_4_an_unclean_election_replaces_offsets_that_are_in_the_tier() -> None:
    """A copied [0, 2] of epoch 0; B has msg 0 alone, leads, and copies [0, 1] of epochs 0 and 1."""

    async def test(table: Table) -> None:
        table.begin()
        await table.append(A, 0)
        await table.settle()
        table.isolate(B)
        await asyncio.sleep(31)
        await table.append(A, 1, 2)
        table.roll(A)
        await table.append(A, 3)
        await table.copy(A)
        assert table.remote() == [(0, 2, [(0, 0)])]

        await table.stop(A, clean=False)
        table.change(leader=B, isr=(B,))
        await table.append(B, 4)
        table.roll(B)
        await table.append(B, 5)
        await table.copy(B)
        assert table.remote() == [(0, 1, [(0, 0), (1, 1)]), (0, 2, [(0, 0)])]
        assert table.epochs(B) == [(0, 0), (1, 1)]

        table.drop_local(B, below=2)
        zero, one, two = row(0, 0), row(1, 1, message=4), row(2, 1, message=5)
        assert table.rows(B) == [two]
        assert await table.consume(B, 0) == [zero], "of A's segment, which goes on elsewhere"
        await answers(table, B, {(1, -1): [one], (1, 0): [one], (2, 1): [two], (3, 1): []})
        assert await parts_at(table, B, 2, 0) == (1, 0)
        assert await parts_at(table, B, 4, 0) == (1, 0)
        for policy in ("earliest", "latest"):
            assert await table.consume(B, 3, 0, reset=policy) == [one], "where the logs part"
        assert table.log(B).log_start_offset == 0
        for _ in range(2):
            await table.copy(B)
        assert len(table.remote()) == 2, "another lineage's goes by its age alone"

    scenario(test)


def test_scenario_5_two_unclean_elections_leave_three_lineages_in_the_tier() -> None:
    """B ships [0, 3] of epochs 0 and 1. A, which knows nothing of epoch 1, leads in epoch 2 and
    ships [4, 5]; then B comes back without its disk.
    """

    async def test(table: Table) -> None:
        table.begin()
        await table.append(A, 0, 1)
        await table.settle()
        table.isolate(B)
        await asyncio.sleep(31)
        await table.append(A, 2, 3)
        table.roll(A)
        await table.append(A, 4)
        await table.copy(A)
        await table.stop(A)

        table.change(leader=B, isr=(B,))
        table.cut.clear()
        await table.append(B, 4, 5)
        table.roll(B)
        await table.append(B, 6)
        await table.copy(B)
        assert table.remote() == [(0, 3, [(0, 0)]), (0, 3, [(0, 0), (1, 2)])]
        of_b = [row(0, 0), row(1, 0), row(2, 1, message=4), row(3, 1, message=5)]
        assert table.rows(B) == [*of_b, row(4, 1, message=6)]
        table.drop_local(B, below=4)
        ahead = {(0, -1): of_b[:2], (2, 0): of_b[2:], (3, 1): of_b[3:], (5, 1): []}
        await answers(table, B, ahead)
        assert await parts_at(table, B, 4, 0) == (2, 0)
        await table.stop(B, clean=False)
        table.disks.pop(B)

        table.change(leader=A, isr=(A,))
        table.start(A, remote_log_storage_system_enable="true")
        await table.append(A, 7)
        table.roll(A)
        await table.append(A, 8)
        assert table.epochs(A) == [(0, 0), (2, 5)]
        await table.copy(A)
        assert table.remote()[2:] == [(4, 5, [(0, 4), (2, 5)])]
        table.drop_local(A, below=6)

        table.start(B, remote_log_storage_system_enable="true")
        await table.settle()
        last = row(6, 2, message=8)
        assert table.rows(A) == table.rows(B) == [last]
        assert table.epochs(A) == table.epochs(B) == [(0, 0), (2, 5)]
        assert table.log(B).log_start_offset == 0
        await asyncio.sleep(1)
        assert set(table.partition.isr) == {A, B}

        table.lead(B)
        await table.copy(B)
        kept = [row(n, 0) for n in range(5)] + [row(5, 2, message=7)]
        inside = {(0, -1): kept[:4], (2, -1): kept[2:4], (2, 0): kept[2:4], (4, 0): kept[4:6]}
        await answers(table, B, {**inside, (5, 0): kept[5:6], (6, 2): [last]})
        gone = await table.consume(B, 3, 1)
        assert isinstance(gone, LogTruncationError)
        assert gone.diverging_offset is None, "it lacks epoch 1: nothing says where it parted"
        assert await parts_at(table, B, 7, 1) == (5, 0)

    scenario(test)
