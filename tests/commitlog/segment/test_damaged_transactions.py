"""Damaged transaction indexes after a clean stop: the batches decide."""

from __future__ import annotations

from tests.commitlog.builders import open_log
from tests.commitlog.log.test_damage_kinds import SETTINGS, copy_of, damages, facts, written


def test_a_damaged_transaction_index_is_made_again_after_a_clean_stop() -> None:
    """Its entries have no checksum, and the cleaner removes records by them."""
    directory = written()
    wanted = facts(open_log(copy_of(directory), SETTINGS, clean=True))
    name = next(n for n in directory.list() if n.endswith(".txnindex"))
    for damage in damages(directory, name):
        disk = copy_of(directory)
        damage(disk)
        assert facts(open_log(disk, SETTINGS, clean=True)) == wanted
        assert disk.read(name) == directory.read(name)


def test_index_files_that_were_all_removed_are_made_again() -> None:
    directory = written()
    wanted = facts(open_log(copy_of(directory), SETTINGS, clean=True))
    disk = copy_of(directory)
    for name in disk.list():
        if name.endswith("index"):
            disk.remove(name)
    assert facts(open_log(disk, SETTINGS, clean=True)) == wanted


def test_a_transaction_index_of_damaged_batches_stays_as_it_is() -> None:
    directory = written()
    name = next(n for n in directory.list() if n.endswith(".txnindex"))
    disk = copy_of(directory)
    disk.flip_bit(name[:20] + ".log", 90)
    log = open_log(disk, SETTINGS, clean=True)
    assert len(log.aborted_transactions(0, log.log_end_offset)) == 1
    assert disk.read(name) == directory.read(name)
