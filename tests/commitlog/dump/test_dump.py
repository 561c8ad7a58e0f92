"""The dump of damaged and unusual files: it never writes, and reports the first bad byte."""

from __future__ import annotations

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.dump import DumpOptions, dump_file, format_entry, text_of
from tests.commitlog.builders import NOW, batch, filled
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.records import Record, encode_batch

LOG = f"{0:020d}.log"


def closed() -> MemoryDirectory:
    directory = MemoryDirectory()
    filled(directory, 10).close()
    return directory


def test_a_batch_that_fails_its_crc_is_shown_and_what_follows_is_too() -> None:
    directory = closed()
    size = len(batch(3))
    directory.flip_bit(LOG, size + 100)
    entries = list(dump_file(directory, LOG, DumpOptions(deep_iteration=False)))
    batches = [entry for entry in entries if entry["kind"] == "batch"]
    assert [entry["is_valid"] for entry in batches] == [True, False] + [True] * 8
    (damage,) = [entry for entry in entries if entry["kind"] == "damage"]
    assert damage["position"] == size
    assert f"from byte {size} on: the CRC check fails" in format_entry(damage)


def lines_of(data: bytes) -> list[str]:
    """Returns Kafka's lines of one batch and its records, as its own tool printed them for these
    bytes.
    """
    directory = MemoryDirectory()
    directory.write_atomic(LOG, data)
    entries = [e for e in dump_file(directory, LOG) if e["kind"] in ("batch", "record", "damage")]
    return [format_entry(entry) for entry in entries]


def test_the_records_of_a_batch_that_fails_its_crc_are_shown_as_far_as_they_can_be_read() -> None:
    records = [Record(0, NOW + i, b"k%d" % i, b"value") for i in range(3)]
    data = bytearray(encode_batch(records, compression="none"))
    data[-6] ^= 1  # the first byte of the last value
    data[53:57] = (-33).to_bytes(4, "big", signed=True)
    batch_line, *shown, damage = lines_of(bytes(data))
    assert "baseSequence: -33 lastSequence: -31 " in batch_line
    assert batch_line.endswith("isvalid: false")
    payloads = [line.partition(" key: ")[2] for line in shown]
    assert payloads == ["k0 payload: value", "k1 payload: value", "k2 payload: walue"]
    assert damage.endswith("from byte 0 on: the CRC check fails")
    data[61 + 14] = 0x7E  # the length of the second record
    _, only, damage = lines_of(bytes(data))
    assert "key: k0" in only
    assert damage.endswith("the CRC check fails")


def test_a_control_record_of_an_unknown_type_is_shown_by_its_number() -> None:
    key = bytes([0, 0, 0x40, 0])
    data = encode_batch(
        [Record(0, NOW, key, bytes(6))], control=True, transactional=True, producer_id=1
    )
    assert lines_of(data)[1:] == [
        f"| offset: 0 CreateTime: {NOW} keySize: 4 valueSize: 6 sequence: -1 headerKeys: []"
        " controlType: UNKNOWN(16384)"
    ]


def test_a_torn_tail_ends_the_dump_at_its_first_byte() -> None:
    directory = closed()
    size = directory.size_of(LOG)
    directory.cut(LOG, size - 5)
    *_, last = dump_file(directory, LOG)
    assert (last["kind"], last["position"]) == ("damage", size - len(batch(3)))
    directory.cut(LOG, 10)
    *_, last = dump_file(directory, LOG)
    assert (last["kind"], last["position"], last["size_bytes"]) == ("damage", 0, 10)


def complaints(directory: MemoryDirectory, name: str) -> list[tuple[str, int]]:
    found = dump_file(directory, name)
    return [(e["kind"], e["position"]) for e in found if e["kind"] in ("damage", "mismatch")]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_is_checked_against_its_log(suffix: str) -> None:
    directory = closed()
    name = f"{0:020d}{suffix}"
    assert complaints(directory, name) == []
    directory.flip_bit(name, 7)
    directory.cut(name, directory.size_of(name) - 3)
    entry = 8 if suffix == ".index" else 12
    wrong, torn = complaints(directory, name)
    assert wrong == ("mismatch", 0)
    assert torn == ("damage", directory.size_of(name) // entry * entry)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_flipped_bit_of_an_index_is_named(suffix: str) -> None:
    whole = closed()
    name = f"{0:020d}{suffix}"
    data = whole.read(name)
    for position in range(len(data)):
        if suffix == ".timeindex" and position % 12 == 11:
            continue  # another offset of the same batch leads to the same batch
        directory = closed()
        directory.flip_bit(name, position)
        found = complaints(directory, name)
        assert found, position
        size = 8 if suffix == ".index" else 12
        assert position // size * size in {at for _, at in found}


def test_the_dump_of_an_index_whose_log_is_gone_shows_its_entries() -> None:
    directory = closed()
    directory.remove(LOG)
    entries = list(dump_file(directory, f"{0:020d}.index"))
    assert entries[1]["kind"] == "offset_index"
    assert complaints(directory, f"{0:020d}.index") == []


def test_a_dump_ends_after_as_many_bytes_as_were_asked_for() -> None:
    directory = closed()
    size = len(batch(3))
    options = DumpOptions(deep_iteration=False, max_bytes=2 * size)
    kinds = [entry["kind"] for entry in dump_file(directory, LOG, options)]
    assert kinds == ["file", "start", "batch", "batch"]


def test_gaps_between_offsets_are_named_at_the_end() -> None:
    directory = MemoryDirectory()
    directory.write_atomic(LOG, batch(1, base_offset=4) + batch(2, base_offset=9))
    *_, last = dump_file(directory, LOG)
    assert format_entry(last) == (
        f"Non-consecutive offsets in {directory.path}/{LOG}\n"
        "  -1 is followed by 4\n  4 is followed by 9"
    )


def test_a_value_that_can_not_be_decoded_is_named_and_skipped() -> None:
    def refuse(value: bytes) -> str:
        raise CorruptMessageError(f"{len(value)} bytes of nonsense")

    options = DumpOptions(decode_value=refuse)
    records = [e for e in dump_file(closed(), LOG, options) if e["kind"] == "record"]
    assert len(records) == 30
    assert records[4]["payload"] == "Error at 4, skipping. 20 bytes of nonsense"


def test_text_files_are_shown_line_by_line() -> None:
    directory = closed()
    directory.write_atomic("recovery-point-offset-checkpoint", b"0\n1\nevents 0 30\n")
    directory.write_atomic("meta.properties", b"#\nnode.id=1\nversion=1\n")
    directory.write_atomic("log-start-offset-checkpoint", b"0\n7\n")
    lines = {
        name: [format_entry(e) for e in dump_file(directory, name)][1:]
        for name in (
            "leader-epoch-checkpoint",
            "recovery-point-offset-checkpoint",
            "meta.properties",
        )
    }
    assert lines == {
        "leader-epoch-checkpoint": ["epoch: 1 startOffset: 0"],
        "recovery-point-offset-checkpoint": ["events-0: 30"],
        "meta.properties": ["node.id: 1", "version: 1"],
    }
    *_, last = dump_file(directory, "log-start-offset-checkpoint")
    assert last["kind"] == "damage"


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("x-checkpoint", "0\n2\na 0 1\nb zero 2\n", ["a-0: 1", (10, "is no entry")]),
        ("x-checkpoint", "0\n3\na 0 1\nb\nc 0 3\n", ["a-0: 1", (10, "'b'"), "c-0: 3"]),
        ("x-checkpoint", "0\n3\na 0 1\n", ["a-0: 1", (2, "3 entries are announced, and 1")]),
        ("x-checkpoint", "0\n1\na 0 12", [(4, "without its end")]),
        ("x-checkpoint", "7\n1\na 0 1\n", [(0, "expected 0")]),
        ("x-checkpoint", "0\nmany\na 0 1\n", [(2, "no count")]),
        ("x-checkpoint", "", [(0, "expected 0")]),
        ("leader-epoch-checkpoint", "0\n2\n1 x\n2 5\n", [(4, "1 x"), "epoch: 2 startOffset: 5"]),
        ("meta.properties", "#c\nnode.id=1\nnonsense\n", ["node.id: 1", (13, "nonsense")]),
        ("partition.metadata", "version: 0\ntopic_id\n", ["version: 0", (11, "key:value")]),
        ("quorum-state", '{"leaderId":1,"data_version":', [(29, "no JSON object")]),
        ("quorum-state", '{"leaderId":1,"currentVoters":[]}', ["leaderId: 1", "currentVoters: []"]),
        (".kafka_cleanshutdown", "[]", [(0, "it is no object")]),
    ],
)
def test_a_line_that_is_none_is_named_by_its_first_byte_and_the_others_are_shown(
    name: str, text: str, shown: list[str | tuple[int, str]]
) -> None:
    directory = MemoryDirectory()
    directory.write_atomic(name, text.encode())
    entries = list(dump_file(directory, name))[1:]
    assert len(entries) == len(shown)
    for entry, wanted in zip(entries, shown, strict=True):
        if isinstance(wanted, str):
            assert format_entry(entry) == wanted
        else:
            assert (entry["kind"], entry["position"]) == ("damage", wanted[0])
            assert wanted[1] in entry["reason"]


def test_a_batch_whose_offsets_go_back_is_where_recovery_would_cut() -> None:
    directory = MemoryDirectory()
    sound = batch(3, base_offset=7) + batch(2, base_offset=10)
    directory.write_atomic(f"{7:020d}.log", sound + batch(2, base_offset=11))
    (found,) = [e for e in dump_file(directory, f"{7:020d}.log") if e["kind"] == "damage"]
    assert found["position"] == len(sound)
    assert "offset 11 where 12" in found["reason"]
    directory.write_atomic(f"{8:020d}.log", sound)
    (found,) = [e for e in dump_file(directory, f"{8:020d}.log") if e["kind"] == "damage"]
    assert found["position"] == 0


def test_a_file_that_is_none_of_a_log_is_refused() -> None:
    directory = MemoryDirectory()
    directory.write_atomic("notes.txt", b"")
    with pytest.raises(StorageError, match="no file of a log"):
        list(dump_file(directory, "notes.txt"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),  # a surrogate: Java replaces all three bytes with one
        (b"\xed\xbf\x41\xed\xa0", "\ufffdA\ufffd"),
        (b"\xed\x9f\xbf\xf0\x9f\x98\x80", "\ud7ff\U0001f600"),
        (b"\xe1\x80\xff\xf4\x90\x80", "\ufffd\ufffd\ufffd\ufffd\ufffd"),
        (b"\xc0\x80a", "\ufffd\ufffda"),
    ],
)
def test_bytes_that_are_no_text_are_replaced_as_java_replaces_them(data: bytes, text: str) -> None:
    assert text_of(data) == text


def test_a_preallocated_index_is_sound_while_empty_and_unsound_once_used() -> None:
    directory = MemoryDirectory()
    sane = DumpOptions(index_sanity=True)

    def complaints(name: str, data: bytes) -> list[str]:
        directory.write_atomic(name, data)
        return [e["kind"] for e in dump_file(directory, name, sane) if e["kind"] == "damage"]

    assert complaints(f"{0:020d}.index", bytes(80)) == []
    assert complaints(f"{0:020d}.timeindex", bytes(120)) == []
    used = (5).to_bytes(8, "big") + (1).to_bytes(4, "big")
    assert complaints(f"{0:020d}.timeindex", used) == []
    assert complaints(f"{0:020d}.timeindex", used + bytes(24)) == ["damage"]
