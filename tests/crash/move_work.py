"""Work for the crash tests of moves: a log moves to another directory and back. It is cut, expired
and appended to between the pieces.
"""

from __future__ import annotations

import random
from uuid import UUID

from commitlog.disk.files import Directory
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.moves import directory_moves, future_log
from tests.crash.harness import Ack
from tidemark.config import ServerConfig, TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOPIC_PARTITION = TopicPartition("crash", 0)
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(
    segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=0, retention_ms=-1
)
SERVER: ServerConfig = parse_server_config(
    {"process.roles": "broker", "node.id": "1", "controller.quorum.voters": "9@localhost:1"}
)


def batch(number: int) -> bytes:
    """Returns batch `number`: one record with the number in it."""
    record = Record(0, NOW_MS + number, b"key %d" % number, b"value %d " % number * 9)
    return encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=number)


def open_all(directory: Directory) -> tuple[LogManager, Log]:
    """Returns the node's logs in two directories, opened after any kind of stop."""
    homes = [directory.subdirectory(name) for name in "ab"]
    manager = LogManager(homes, SERVER, now_ms=lambda: NOW_MS, topic_config=lambda _: CONFIG)
    manager.open()
    return manager, manager.get_or_create(TOPIC_PARTITION, None, CONFIG)


def add(log: Log, count: int, ack: Ack) -> None:
    """Appends, and acknowledges the log's durable end."""
    for number in range(log.log_end_offset, log.log_end_offset + count):
        log.append_as_leader(batch(number), 1, NOW_MS)
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    ack(f"end {log.log_end_offset}")


def append_and_move(directory: Directory, ack: Ack, moves: int = 1) -> None:
    """Moves the log there and back, and so on."""
    _number_names()
    manager, log = open_all(directory)
    add(log, 7, ack)
    for _ in range(moves):
        home = manager.directory_of(TOPIC_PARTITION)
        future = manager.moves.begin(log, next(d for d in manager.directories if d is not home))
        while (piece := future.next_piece()) is not None:
            result = piece.run()
            if log.log_end_offset % 5 == 0:
                add(log, 1, ack)
            future.take(piece, result)
        ack(f"cut {log.log_end_offset - 2}")
        log.truncate_to(log.log_end_offset - 2, NOW_MS)
        log.increment_log_start_offset(log.segments[1].base_offset)
        manager.checkpoint_log_start_offsets()
        delete_expired(log, NOW_MS)
        ack(f"start {log.log_start_offset}")
        manager.moves.swap(TOPIC_PARTITION)
        ack("moved")
        add(log, 2, ack)
        manager.purge_deleted(NOW_MS)
    manager.close(clean=False)


def _number_names() -> None:
    """Numbers unique names, so that the names of a crash point are the same in every child."""
    rng = random.Random(1)
    for module in (future_log, directory_moves):
        assert hasattr(module, "random_uuid")
        module.random_uuid = lambda: UUID(int=rng.getrandbits(128))
