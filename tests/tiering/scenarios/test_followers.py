"""KIP-405, "follower fetch scenarios" 1 and 2, and "follower to leader"."""

from __future__ import annotations

import asyncio

from tests.tiering.scenarios.table import A, B, Table, row, scenario
from tidemark.errors import OffsetOutOfRangeError

EPOCHS = [(0, 0), (1, 3), (2, 5), (3, 7)]
ROWS = [row(n, e) for n, e in enumerate([0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3])]


async def led_by_a(table: Table, end: int) -> None:
    """A leads in epochs 0 to 3 and has everything below `end`, in segments of three offsets."""
    for offset in range(end):
        for epoch, start in EPOCHS[1:]:
            if offset == start:
                table.lead(A)
                assert table.partition.leader_epoch == epoch
        await table.append(A, offset)
        if offset in (2, 5, 8):
            table.roll(A)


def test_scenario_1_a_new_follower_builds_its_epochs_from_the_tier() -> None:
    async def test(table: Table) -> None:
        table.begin()
        table.isolate(B)
        await asyncio.sleep(31)
        await led_by_a(table, 8)
        await table.copy(A)
        table.drop_local(A, below=3)
        assert table.remote() == [(0, 2, [(0, 0)]), (3, 5, [(1, 3), (2, 5)])]
        assert (table.rows(A), table.epochs(A)) == (ROWS[3:8], EPOCHS)
        assert table.rows(B) == []

        table.cut.clear()
        await table.settle()
        assert (table.rows(B), table.epochs(B)) == (ROWS[3:8], EPOCHS)
        assert table.log(B).log_start_offset == 0
        await asyncio.sleep(1)
        assert set(table.partition.isr) == {A, B}

        table.lead(B)
        assert table.epochs(B) == [*EPOCHS, (4, 8)]
        await table.copy(B)
        assert len(table.remote()) == 2, "B knows that both are copied"
        for offset, epoch, expected in (
            (0, -1, ROWS[:3]),
            (1, 0, ROWS[1:3]),
            (3, 0, ROWS[3:8]),
            (5, 1, ROWS[5:8]),
            (7, 2, ROWS[7:8]),
        ):
            assert await table.consume(B, offset, epoch) == expected, (offset, epoch)

    scenario(test)


def test_scenario_2_a_follower_that_is_out_of_sync_begins_anew_at_the_earliest_local_offset() -> (
    None
):
    async def test(table: Table) -> None:
        table.begin()
        for offset in range(3):
            await table.append(A, offset)
        await table.settle()
        table.roll(A)
        table.lead(A)
        await table.append(A, 3)
        await table.settle()
        assert (table.rows(B), table.epochs(B)) == (ROWS[:4], EPOCHS[:2])
        table.isolate(B)
        await asyncio.sleep(31)
        for offset in range(4, 12):
            if offset in (5, 7):
                table.lead(A)
            await table.append(A, offset)
            if offset in (5, 8):
                table.roll(A)
        await table.copy(A)
        table.drop_local(A, below=9)
        assert table.remote() == [
            (0, 2, [(0, 0)]),
            (3, 5, [(1, 3), (2, 5)]),
            (6, 8, [(2, 6), (3, 7)]),
        ]
        assert (table.rows(A), table.epochs(A)) == (ROWS[9:], EPOCHS)

        table.cut.clear()
        await table.settle()
        assert (table.rows(B), table.epochs(B)) == (ROWS[9:], EPOCHS)
        assert table.log(B).log_start_offset == 0
        table.lead(B)
        assert await table.consume(B, 3, 0) == ROWS[3:6]
        assert await table.consume(B, 6, 2) == ROWS[6:9]

    scenario(test)


def test_scenario_2_a_follower_above_the_earliest_local_offset_fetches_as_ever() -> None:
    """The KIP's first step: the segments of the leader are still on its disk."""

    async def test(table: Table) -> None:
        table.begin()
        table.isolate(B)
        await asyncio.sleep(31)
        await led_by_a(table, 10)
        await table.copy(A)
        table.cut.clear()
        await table.settle()
        assert (table.rows(B), table.epochs(B)) == (ROWS[:10], EPOCHS)
        assert table.log(B).local_log_start_offset == 0

    scenario(test)


def test_a_follower_that_becomes_leader_copies_on_where_its_lineage_ends_in_the_tier() -> None:
    """The KIP's table: A dies with offsets 7 and 8 that B lacks. B finds offset 4 of epoch 1 to be
    the highest copied one, and copies the segment that holds 5, as a whole.
    """

    async def test(table: Table) -> None:
        table.begin()
        for offset in range(7):
            if offset in (3, 6):
                table.lead(A)
            await table.append(A, offset)
            await table.settle()
            if offset in (2, 4):
                table.roll(A)
            if offset in (2, 3, 6):
                table.roll(B)
        await table.copy(A)
        epochs = [(0, 0), (1, 3), (2, 6)]
        assert table.remote() == [(0, 2, [(0, 0)]), (3, 4, [(1, 3)])]
        assert table.epochs(A) == table.epochs(B) == epochs
        table.cut |= {(A, B), (B, A)}
        await table.append(A, 7, 8)
        await table.stop(A, clean=False)
        table.change(leader=B, isr=(B,))
        await table.append(B, 8)
        assert table.epochs(B) == [*epochs, (3, 7)]
        await table.copy(B)
        assert table.remote() == [
            (0, 2, [(0, 0)]),
            (3, 4, [(1, 3)]),
            (4, 6, [(1, 4), (2, 6)]),
        ]
        table.drop_local(B, below=7)
        kept = [row(n, e) for n, e in enumerate([0, 0, 0, 1, 1, 1, 2])]
        assert await table.consume(B, 3, 0) == kept[3:5]
        assert await table.consume(B, 5, 1) == kept[5:7]
        assert await table.consume(B, 7, 2) == [row(7, 3, message=8)]
        assert table.log(B).log_start_offset == 0
        beyond = await table.consume(B, 9)
        assert isinstance(beyond, OffsetOutOfRangeError)
        assert await table.consume(B, 9, reset="earliest") == kept[:3]

    scenario(test)
