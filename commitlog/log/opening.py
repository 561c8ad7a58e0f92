"""Opens a log: loads its segments, and aligns leader epochs, producers and offsets with them."""

from __future__ import annotations

from uuid import UUID

from commitlog.disk.checkpoints import check_topic_id
from commitlog.disk.files import Directory
from commitlog.log.claims import check_end, check_start
from commitlog.log.events import UNTRACKED, LogEvents
from commitlog.log.flushing import Durability
from commitlog.log.loader import load_segments, replay_producers
from commitlog.log.log import Log
from commitlog.log.restart import Restart
from commitlog.log.segments import Segments
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.segment.producer_state import ProducerStateManager
from tidemark.config import TopicConfig
from tidemark.types import TopicPartition

_DAY_MS = 86_400_000


def open_log(
    directory: Directory,
    topic_partition: TopicPartition,
    config: TopicConfig,
    *,
    now_ms: int,
    topic_id: UUID | None = None,
    recovery_point: int | None = None,
    log_start_offset: int = 0,
    high_watermark: int | None = None,
    clean: bool = False,
    producer_expiration_ms: int = _DAY_MS,
    events: LogEvents[Log] = UNTRACKED,
) -> Log:
    """Opens the log in `directory`, or creates one; recovers it unless `clean`.

    `recovery_point` (None: unknown, see `commitlog.log.loader`), `log_start_offset` and
    `high_watermark` come from the checkpoints. Raises StorageError, InconsistentTopicIdError if the
    files belong to another topic, and the errors of `commitlog.log.claims`.
    """
    topic_id = check_topic_id(directory, topic_partition, topic_id)
    restart = Restart.read(directory)
    if restart is not None:  # a crash came before the log's next change
        restart.apply(directory)
        recovery_point, log_start_offset = None, restart.log_start_offset
    epochs = LeaderEpochCache(directory)
    producers = ProducerStateManager(directory, producer_expiration_ms)
    loaded = load_segments(
        directory, config, epochs, recovery_point=recovery_point, clean=clean, now_ms=now_ms
    )
    found = loaded.segments
    if not found:
        check_end(directory.path, log_start_offset, recovery_point)
    elif found[-1].next_offset < log_start_offset:
        end = found[-1].next_offset
        check_start(directory.path, log_start_offset, end, recovery_point, high_watermark, clean)
        log_start_offset = _start_without_checkpoint(config, epochs)
    segments = Segments(directory, topic_partition, config, producers)
    if found:
        segments.replace_all(found)
    else:
        segments.begin(restart.offset if restart else log_start_offset, now_ms)
    first, end = segments.bases[0], segments.active.next_offset
    # Only the tier can have records below the first local segment (KIP-405).
    start = log_start_offset if config.remote_storage_enable else max(log_start_offset, first)
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(start)
    producers.remove_stray(set(segments.bases))
    producers.reload(start, end, now_ms)
    replay_producers(producers, segments.all, end)
    producers.on_high_watermark(start)
    durability = Durability(segments, epochs, producers, end_offset=end, now_ms=now_ms)
    durability.restart = restart
    log = Log(durability, topic_id, start, events)
    log.recovered_bytes_cut = loaded.cut_bytes
    if clean and not loaded.recovered_segments:
        durability.names_synced = 1
    else:
        durability.recovery_point = min(recovery_point or 0, end)
        log.flush()
    log.changed = events.unread
    return log


def _start_without_checkpoint(config: TopicConfig, epochs: LeaderEpochCache) -> int:
    """Returns a lower bound of the log start. The first epoch begins there as of its last flush;
    without a tier the first segment decides.
    """
    entries = epochs.entries() if config.remote_storage_enable else []
    return max(0, entries[0][1]) if entries else 0
