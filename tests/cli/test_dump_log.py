"""`tidemark dump-log` over files of Apache Kafka, compared with Kafka's tool line by line."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli.main import app
from tidemark.records import Record, decode_batch, encode_batch, iter_batches

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.0"
DUMPS = sorted(
    path
    for path in GOLDEN.rglob("*.dump.txt")
    if path.with_name(path.name.removesuffix(".dump.txt")).exists()
)
runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, ["dump-log", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.removesuffix("\n")


MORE = GOLDEN.with_name("kafka-4.3.0-more")  # other seeds and sizes: cases missing there
MORE_DUMPS = sorted(MORE.rglob("*.dump.txt"))


def options_of(dump: Path, text: str) -> list[str]:
    """The options of the tool when it printed this."""
    if dump.parent.name.startswith("__remote_log_metadata"):
        return ["--remote-log-metadata-decoder"]
    if dump.parent.name.startswith("__transaction_state"):
        return ["--transaction-log-decoder"]
    if dump.parent.name.startswith("__consumer_offsets"):
        return ["--offsets-decoder"]
    if "__cluster_metadata" in str(dump) or "bootstrap" in dump.name:
        return ["--cluster-metadata-decoder"]
    return ["--print-data-log"] if "payload:" in text else ["--deep-iteration"]


def decode_all(data: bytes) -> list[Record]:
    return [
        record
        for position, header in iter_batches(data)
        if not header.is_control
        for record in decode_batch(data, position)
    ]


@pytest.fixture(autouse=True)
def inside_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's tool was run in that directory, and prints names as given."""
    monkeypatch.chdir(GOLDEN)


def _name(path: Path) -> str:
    return str(path.relative_to(GOLDEN))


@pytest.mark.parametrize("dump", DUMPS, ids=_name)
def test_the_command_prints_what_kafkas_tool_prints(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dump.read_text(encoding="utf-8")
    wanted = [line.rstrip() for line in text.strip().split("\n")]
    named = wanted[0].removeprefix("Dumping ")
    monkeypatch.chdir(Path(str(dump.with_name(dump.name.removesuffix(".dump.txt")))[: -len(named)]))
    shown = [line.rstrip() for line in run(named, *options_of(dump, text)).split("\n")]
    assert shown == wanted


@pytest.mark.parametrize("dump", MORE_DUMPS, ids=lambda path: str(path.relative_to(MORE)))
def test_more_files_of_kafka_are_printed_as_its_tool_prints_them(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(MORE)
    text = dump.read_bytes().decode("utf-8")  # payloads may hold a carriage return
    wanted = [line.rstrip() for line in text.strip().split("\n")]
    named = str(dump.relative_to(MORE)).removesuffix(".dump.txt")
    shown = [line.rstrip() for line in run(named, *options_of(dump, text)).split("\n")]
    assert shown == wanted


def test_files_may_be_given_kafkas_way_and_are_dumped_in_order() -> None:
    names = ["codec-zstd-0/00000000000000000000.log", "codec-zstd-0/00000000000000000000.timeindex"]
    shown = run("--files", ",".join(names)).split("\n")
    assert [line for line in shown if line.startswith("Dumping")] == [f"Dumping {n}" for n in names]
    assert len([line for line in shown if line.startswith("baseOffset")]) == 1


@pytest.mark.parametrize("dump", [d for d in DUMPS if d.name.endswith(".log.dump.txt")], ids=_name)
def test_json_is_one_object_a_batch_with_its_records(dump: Path) -> None:
    name = _name(dump).removesuffix(".dump.txt")
    lines = [json.loads(line) for line in run(name, "--print-data-log", "--json").split("\n")]
    batches = [line for line in lines if line["kind"] == "batch"]
    text = dump.read_text(encoding="utf-8").split("\n")
    assert len(batches) == sum(line.startswith("baseOffset") for line in text)
    records = [record for batch in batches for record in batch["records"]]
    assert len(records) == sum(line.startswith("| ") for line in text)
    for batch in batches:
        assert len(batch["records"]) == batch["count"]
        assert [r["offset"] for r in batch["records"]] == sorted(
            r["offset"] for r in batch["records"]
        )
    shallow = run(name, "--json").split("\n")
    assert not any("records" in json.loads(line) for line in shallow)


def test_records_without_their_metadata_are_keys_and_payloads() -> None:
    name = "codec-none-0/00000000000000000000.log"
    full = run(name, "--print-data-log").split("\n")[3:]
    short = run(name, "--print-data-log", "--skip-record-metadata").split("\n")[3:]
    for whole, brief in zip(full, short, strict=True):
        contents = whole.split("] ", 1)
        assert brief == ("| " + contents[1] if len(contents) == 2 else "").rstrip()


def test_max_bytes_ends_a_segment_early() -> None:
    name = "rolled-by-size-0/00000000000000000000.log"
    shown = run(name, "--max-bytes", "40000").split("\n")
    ends = [int(line.split(" position: ")[1].split()[0]) for line in shown[2:]]
    sizes = [int(line.split(" size: ")[1].split()[0]) for line in shown[2:]]
    assert 0 < len(ends) < 10
    assert ends[-1] + sizes[-1] <= 40_000  # only whole batches, as Kafka's tool slices
    exact = run(name, "--max-bytes", str(ends[-1] + sizes[-1])).split("\n")
    assert exact == shown
    assert run(name, "--max-bytes", str(ends[-1] + sizes[-1] - 1)).split("\n") == shown[:-1]


@pytest.mark.parametrize("option", ["--verify-index-only", "--index-sanity-check"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_sound_indexes_pass_and_damaged_ones_are_told_with_status_1(
    option: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "transactional-0" if suffix == ".txnindex" else "rolled-by-size-0"
    for path in (GOLDEN / name).iterdir():
        shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    index = f"{0:020d}{suffix}"
    shown = run(index, option).split("\n")
    if suffix == ".txnindex":  # Kafka's tool prints its entries with any options
        assert [line.split(":")[0] for line in shown[1:]] == ["version"] * (len(shown) - 1)
    else:
        passed = [f"{index} passed sanity check."] if option == "--index-sanity-check" else []
        assert shown == [f"Dumping {index}", *passed]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with (tmp_path / index).open("r+b") as file:
        file.seek(1)
        file.write(b"\x55")
    result = runner.invoke(app, ["dump-log", index, option])
    assert result.exit_code == 1
    assert "byte 0" in result.stdout
    assert {n: d for n, d in before.items() if n != index} == {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != index
    }


def test_a_cut_segment_is_shown_up_to_its_first_bad_byte(tmp_path: Path) -> None:
    source = GOLDEN / "rolled-by-size-0" / f"{0:020d}.log"
    cut = tmp_path / source.name
    cut.write_bytes(source.read_bytes()[:50_000])
    cut.chmod(0o444)
    lines = [json.loads(line) for line in run(str(cut), "--json").split("\n")]
    batches = [line for line in lines if line["kind"] == "batch"]
    (damage,) = [line for line in lines if line["kind"] == "damage"]
    assert damage["position"] == batches[-1]["position"] + batches[-1]["size_bytes"]
    assert damage["position"] + damage["size_bytes"] == 50_000


def test_the_decoders_exclude_each_other() -> None:
    for other in ("--remote-log-metadata-decoder", "--transaction-log-decoder"):
        both = ["--cluster-metadata-decoder", other]
        result = runner.invoke(app, ["dump-log", "bootstrap.checkpoint", *both])
        assert result.exit_code == 1
        assert "one of the decoders" in result.stderr


def test_a_decoder_of_ones_own_makes_text_of_keys_and_values(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([Record(0, 1, b"6b", b"not hex"), Record(1, 1, None, None)]))
    own = [
        "--key-decoder-class",
        "binascii:unhexlify",
        "--value-decoder-class",
        "binascii:unhexlify",
    ]
    first, second = run(str(path), "--print-data-log", *own).split("\n")[3:]
    assert "key: b'k' payload: Error at 0, skipping. binascii:unhexlify: Error: " in first
    assert "key:" not in second
    for wrong, said in (("binascii", "MODULE:FUNCTION"), ("nowhere:f", "nowhere"), ("json:f", "f")):
        result = runner.invoke(app, ["dump-log", str(path), "--value-decoder-class", wrong])
        assert result.exit_code == 1
        assert said in result.stderr


def test_an_entry_whose_batch_is_larger_than_max_message_size_is_named() -> None:
    name = "rolled-by-size-0/00000000000000000000.index"
    assert run(name, "--verify-index-only").count("\n") == 0
    limit = ["--max-message-size", "10000"]
    result = runner.invoke(app, ["dump-log", name, "--verify-index-only", *limit])
    assert result.exit_code == 1
    assert "more than --max-message-size 10000" in result.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("codec-none-0", "codec-none-0/*.log"),
        ("nowhere.log", "there is no file nowhere.log"),
        ("../../__init__.py", "__init__.py is no file of a log: expected .log"),
    ],
)
def test_what_is_no_file_of_a_log_is_told_and_nothing_is_dumped(name: str, said: str) -> None:
    result = runner.invoke(app, ["dump-log", name])
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("__cluster_metadata-0/quorum-state", ["leaderId: 1", "leaderEpoch: 1", "votedId: -1"]),
        ("meta.properties", ["node.id: 1"]),
        ("recovery-point-offset-checkpoint", ["compacted-0: 400"]),
        ("__transaction_state-0/leader-epoch-checkpoint", ["epoch: 0 startOffset: 0"]),
    ],
)
def test_small_files_are_shown_too(name: str, lines: list[str]) -> None:
    shown = run(name).split("\n")
    assert set(lines) <= set(shown[1:])
    printed = [json.loads(line) for line in run(name, "--json").split("\n")]
    assert printed[0]["kind"] == "file"
    assert len(printed) == len(shown)


def test_kafkas_own_records_cut_anywhere_are_named_and_the_dump_goes_on(tmp_path: Path) -> None:
    records = [
        (f"{43:020d}-0000000001.checkpoint", "--cluster-metadata-decoder"),
        (f"{0:020d}.log", "--transaction-log-decoder"),
    ]
    for (name, option), folder in zip(
        records, ("__cluster_metadata-0", "__transaction_state-0"), strict=True
    ):
        found = [
            record
            for record in decode_all((GOLDEN / folder / name).read_bytes())
            if record.value is not None and len(record.value) < 60
        ][:12]
        cut = [
            Record(0, 1, record.key, (record.value or b"")[:size])
            for record in found
            for size in range(len(record.value or b""))
        ]
        path = tmp_path / f"{0:020d}.log"
        path.write_bytes(encode_batch(cut))
        lines = run(str(path), option).split("\n")[3:]
        assert len(lines) == len(cut)
        assert sum("Error at" in line for line in lines) >= len(cut) - len(found)


@pytest.mark.parametrize("option", [None, "--verify-index-only", "--index-sanity-check"])
def test_an_offset_index_without_entries_is_called_empty(
    option: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        (tmp_path / f"{0:020d}{suffix}").touch()
    name = f"{0:020d}.index"
    shown = run(name, *([option] if option else [])).split("\n")
    assert shown == [f"Dumping {name}", f"{name} is empty."]
    times = f"{0:020d}.timeindex"
    passed = [f"{times} passed sanity check."] if option == "--index-sanity-check" else []
    assert run(times, *([option] if option else [])).split("\n") == [f"Dumping {times}", *passed]


def test_json_keeps_bytes_that_are_no_text_and_the_values_of_headers(tmp_path: Path) -> None:
    records = [
        Record(0, 1, b"\xff\x00k", b"\xc3\x28", (("a", b"\xfe"), ("b", b"text"), ("c", None)))
    ]
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(encode_batch(records))
    lines = [json.loads(line) for line in run(str(log), "--print-data-log", "--json").split("\n")]
    (record,) = next(line["records"] for line in lines if line["kind"] == "batch")
    assert base64.b64decode(record["key_base64"]) == b"\xff\x00k"
    assert base64.b64decode(record["payload_base64"]) == b"\xc3\x28"
    assert record["headers"] == [
        {"key": "a", "value_base64": "/g=="},
        {"key": "b", "value": "text"},
        {"key": "c", "value": None},
    ]
