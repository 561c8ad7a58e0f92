"""Damage to one replica of three, chosen by a seed, on virtual time with the real controller.

Three brokers hold one partition. The files of one replica are damaged: a bit, a cut, zeros, a file
that is gone or exchanged. That happens after a clean or an unclean stop, or while the broker runs.
Then the brokers go on, and every read on the way is kept. A seed repeats its case exactly.

Eligible leader replicas are on, as in a new cluster (`quorum/image/features.py::FIRST_LEVELS`).
Nothing is promised without them. If all stop at once, recovery may cut the log of the last of the
ISR. It is then elected (KIP-966). Damage in an active segment is
found by a reader, or by the scrubber once the segment is rolled.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, format_epochs
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.verify import Finding, verify_directory
from quorum.image.image import ELR_VERSION
from tests.node.cluster import TOPIC
from tests.node.jbod import JbodCluster, JbodNode
from tidemark.errors import CorruptMessageError, ErrorCode, TidemarkError
from tidemark.records import decode_batch, iter_batches

NODES = (1, 2, 3)
STOPS = ("clean stop", "unclean stop", "running")
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
)


@dataclass
class Case:
    """One damaged replica; `read` has every (offset, value) that a consumer was given."""

    seed: int
    cluster: JbodCluster
    variant: str = ""
    told: list[str] = field(default_factory=list)
    read: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.stop = STOPS[self.seed % len(STOPS)]
        self.victims = self.rng.sample(NODES, 2 if self.variant == "two victims" else 1)
        self.cluster.idempotent = self.variant == "idempotent"

    def __str__(self) -> str:
        return (
            f"seed {self.seed} {self.variant}: nodes {self.victims}, {self.stop}:"
            f" {', '.join(self.told)}"
        )

    async def run(self) -> None:
        """Loads, damages, goes on, and waits until three sound replicas are in sync again."""
        cluster = self.cluster
        assert cluster.scenario.set_feature(ELR_VERSION, 1) == 0, cluster.scenario.message
        await cluster.boot(*NODES)
        cluster.create(
            NODES, min_insync_replicas="2", segment_bytes="1400", index_interval_bytes="300"
        )
        await cluster.load(0, 60)
        if self.stop == "running":
            self.damage(self.victims[0])
            await self.read_around()
        else:
            await self._damage_at_rest(clean=self.stop == "clean stop")
        await self.read_around()
        await cluster.load(0, 30)
        await self.read_around()
        await self.healed()
        await self.compare()
        for node_id in NODES:
            await cluster.stop_node(node_id)
        assert self._faults() == [], str(self)

    # --- damage

    async def _damage_at_rest(self, *, clean: bool) -> None:
        """Stops the victims, or all, one after the other; damages the victims; starts them."""
        cluster = self.cluster
        stopped = list(NODES) if self.variant == "all stopped" else self.victims
        for node_id in stopped:
            await cluster.stop_node(node_id, clean=clean or node_id not in self.victims)
        if len(stopped) == 1:
            await cluster.load(0, self.rng.randrange(20))
        for node_id in self.victims:
            self.damage(node_id)
        await cluster.boot(*stopped)

    def damage(self, node_id: int) -> None:
        """Damages one to three files of a node."""
        partition = f"{TOPIC}-0"
        homes = [self.cluster.disk(node_id, name) for name in self.cluster.directories]
        disk = next(home for home in homes if home.exists(partition))
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            log = disk.subdirectory(f"{TOPIC}-0")
            assert isinstance(log, MemoryDirectory)
            there = [name for name in CHECKPOINTS if disk.exists(name)]
            if self.rng.random() < 0.12 and there:
                self._damage(disk, self.rng.choice(there))
            else:
                self._damage(log, self.rng.choice(log.list()))

    def _damage(self, directory: MemoryDirectory, name: str) -> None:
        rng, size = self.rng, directory.size_of(name)
        way = rng.choice(("flip", "flip", "flip", "cut", "zeros", "remove", "exchange"))
        if way == "exchange":
            same = [n for n in directory.list() if n != name and n[20:] == name[20:]]
            if not same or not name[0].isdigit():
                return
            other = rng.choice(same)
            one, two = directory.read(name), directory.read(other)
            overwrite(directory, name, two)
            overwrite(directory, other, one)
            self.told.append(f"{name} and {other} exchanged")
        elif name == LEADER_EPOCH_CHECKPOINT and way in ("cut", "zeros"):
            forged = [(0, 0), (rng.randrange(1, 9), rng.randrange(1, 60))]
            overwrite(directory, name, format_epochs(forged))
            self.told.append(f"{name} has {forged}")
        elif way == "remove":
            directory.remove(name)
            self.told.append(f"{name} removed")
        elif size:
            at = rng.randrange(size)
            data = directory.read(name)
            if way == "flip":
                bit = rng.randrange(8)
                directory.flip_bit(name, at, bit)
                self.told.append(f"{name} bit {bit} of byte {at} of {size}")
            elif way == "zeros":
                count = min(rng.randrange(1, 64), size - at)
                overwrite(directory, name, data[:at] + bytes(count) + data[at + count :])
                self.told.append(f"{name} {count} zeros at {at} of {size}")
            else:
                directory.cut(name, at)
                self.told.append(f"{name} cut to {at} of {size}")

    # --- reads

    async def read_around(self) -> None:
        """Reads from random offsets of whatever leads, and notes what came."""
        for _ in range(12):
            await self._read_once(self.rng.randrange(len(self.cluster.acked[0])))
            await asyncio.sleep(0.3)

    async def _read_once(self, offset: int) -> None:
        leader = self.cluster.of(0).leader
        if leader is None or leader not in self.cluster.nodes:
            return
        answer = await self.cluster.fetch_from(leader, 0, offset)
        if answer.error_code != ErrorCode.NONE:
            return
        for position, header in iter_batches(answer.payload):
            assert header.next_offset > offset, f"{self}: a batch before {offset} came"
            try:
                records = decode_batch(answer.payload, position)
            except CorruptMessageError:
                return  # the consumer is told
            self.read |= {(r.offset, r.value.decode()) for r in records if r.value is not None}

    # --- the end

    async def healed(self) -> None:
        """Waits for three in-sync replicas. Passes of the scrubbers find what nobody reads, after
        appends that roll the segments that were active.
        """
        for _ in range(3):
            await self.cluster.load(0, 30)
            await self._until_healed()
            for node in list(self.cluster.nodes.values()):
                await scrubbed(node)
        await self._until_healed()

    async def _until_healed(self) -> None:
        try:
            await self.cluster.until(self._is_healed, seconds=120)
        except AssertionError:
            raise AssertionError(f"{self}: {self.cluster.of(0)}, {self._why()}") from None

    def _why(self) -> list[str]:
        partition = self.cluster.name(0)
        return [node.partitions.offline.get(partition, "") for node in self.cluster.nodes.values()]

    def _is_healed(self) -> bool:
        registration = self.cluster.of(0)
        if set(registration.isr) != set(NODES) or registration.leader is None:
            return False
        found = [node.partitions.find(self.cluster.name(0)) for node in self.cluster.nodes.values()]
        return all(
            hosted is not None
            and not hosted.offline
            and hosted.log.log_end_offset == hosted.log.high_watermark
            for hosted in found
        )

    def _faults(self) -> list[Finding]:
        """Damage left on any disk, in what is durable."""
        found: list[Finding] = []
        disks = [(node_id, name) for node_id in NODES for name in self.cluster.directories]
        for node_id, name in disks:
            disk = self.cluster.disk(node_id, name)
            if not disk.exists(f"{TOPIC}-0"):
                continue
            check = verify_directory(disk, only=f"{TOPIC}-0")
            found += [finding for finding in check if finding.is_damage]
        return found

    async def compare(self) -> None:
        """Every replica has every acknowledged record, and all reads agree with it."""
        wanted: dict[int, str] | None = None
        for node in self.cluster.nodes.values():
            log, offset = node.hosted(0).log, 0
            assert log.log_start_offset == 0, f"{self}: the log of node {node.node_id} begins late"
            records: dict[int, str] = {}
            while offset < log.log_end_offset:
                payload = log.read(offset, 1 << 20).records
                for position, header in iter_batches(payload):
                    assert header.base_offset == offset, (
                        f"{self}: a hole before {header.base_offset}"
                    )
                    offset = header.next_offset
                    for record in decode_batch(payload, position):
                        if record.value is not None:
                            records[record.offset] = record.value.decode()
            wanted = wanted or records
            assert records == wanted, f"{self}: node {node.node_id} differs"
        assert wanted is not None
        missing = set(self.cluster.acked[0]) - set(wanted.values())
        if self.variant == "idempotent":
            assert len(set(wanted.values())) == len(wanted), f"{self}: a record is there twice"
        assert not missing, f"{self}: lost {sorted(missing)[:5]}"
        wrong = self.read - set(wanted.items())
        assert not wrong, f"{self}: wrong records were read: {sorted(wrong)[:5]}"


def overwrite(directory: MemoryDirectory, name: str, data: bytes) -> None:
    """Replaces a file's bytes in place, as a disk that returns others does: open handles see it."""
    directory.cut(name, 0)
    file = directory.open(name)
    file.append(data)
    file.fsync()
    file.close()


async def scrubbed(node: JbodNode) -> None:
    """One pass of the node's scrubber."""
    try:
        await node.scrubber.scrub_all()
    except TidemarkError as error:
        raise AssertionError(f"the scrubber of node {node.node_id} failed") from error
