"""A real cluster keeps its promises to clients while links are cut, processes are killed and
stopped, and a disk gets full. `tests.e2e.network_storm` runs for 30 s, in the soak for two minutes.

`TIDEMARK_CHAOS_SEED` chooses the faults. Where the machine permits network namespaces the kernel
cuts the links, elsewhere proxies do.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.links import CLIENTS, Proxies
from tests.e2e.network_faults import may_use_namespaces
from tests.e2e.network_storm import AUTO, NAMESPACES, PROXIES


def command(directory: Path, seed: int, seconds: float, links: str) -> list[str]:
    return [
        *(sys.executable, "-m", "tests.e2e.network_storm", str(directory)),
        *("--seed", str(seed), "--seconds", str(seconds), "--links", links),
    ]


def storm(directory: Path, seconds: float, links: str) -> None:
    """Runs a storm. A failure shows its seed, its output, and how to judge its history again."""
    seed = int(os.environ.get("TIDEMARK_CHAOS_SEED", random.randrange(1 << 30)))
    with (directory / "output").open("w+b") as output:
        done = subprocess.run(
            command(directory, seed, seconds, links),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds + 240,
            check=False,
        )
        output.seek(0)
        said = output.read().decode(errors="replace")
    history = directory / "history.jsonl"
    assert done.returncode == 0, (
        f"{said}\n\nTIDEMARK_CHAOS_SEED={seed} repeats the faults (not the timing)\n"
        f"python -m tidemark.testing.checker {history} judges its history again"
    )
    assert "not examined" not in said, said


@pytest.mark.timeout(300)
def test_every_promise_to_clients_is_kept_while_the_network_fails(tmp_path: Path) -> None:
    storm(tmp_path, float(os.environ.get("TIDEMARK_CHAOS_S", "30")), AUTO)


@pytest.mark.soak
@pytest.mark.timeout(500)
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
@pytest.mark.parametrize("links", [NAMESPACES, PROXIES])
def test_the_same_for_two_minutes(links: str, tmp_path: Path) -> None:
    if links == NAMESPACES and not may_use_namespaces():
        pytest.skip("this machine permits no network namespaces")
    storm(tmp_path, 120, links)


@pytest.mark.parametrize("links", [NAMESPACES, PROXIES])
def test_no_process_is_left_when_a_storm_is_killed(links: str, tmp_path: Path) -> None:
    if links == NAMESPACES and not may_use_namespaces():
        pytest.skip("this machine permits no network namespaces")
    running = subprocess.Popen(
        command(tmp_path, 1, 30, links),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(nodes_of(tmp_path)) == 8)
    finally:
        running.kill()
        running.wait()
    until(lambda: not nodes_of(tmp_path))


def nodes_of(directory: Path) -> list[int]:
    """The ids of processes that run a node of a cluster in this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in line and b"tidemark.cli.main" in line:
                found.append(int(entry.name))
    return found


def until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_proxy_holds_bytes_back_in_the_direction_that_is_cut() -> None:
    async def work() -> None:
        arrived: asyncio.Queue[bytes] = asyncio.Queue()
        answer: asyncio.Queue[bytes] = asyncio.Queue()
        done = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(10):
                arrived.put_nowait(piece)
                writer.write(await answer.get())
            writer.close()
            await writer.wait_closed()
            done.set()

        links = Proxies({1: "PLAINTEXT"}, lambda node: None)
        await links.start()
        behind = int(links.settings[1]["listeners"].rsplit(":", 1)[1])
        server = await asyncio.start_server(serve, "127.0.0.1", behind)
        reader, writer = await asyncio.open_connection("127.0.0.1", links.ports[1])
        writer.write(b"one")
        assert await arrived.get() == b"one"
        links.cut(1, CLIENTS)  # requests arrive, answers do not
        answer.put_nowait(b"1")
        writer.write(b"two")
        assert await arrived.get() == b"two"
        links.cut(CLIENTS, 1)
        writer.write(b"three")
        links.mend(1, CLIENTS)
        assert await reader.readexactly(1) == b"1"
        assert arrived.empty()
        links.mend(CLIENTS, 1)
        answer.put_nowait(b"2")
        assert await arrived.get() == b"three"
        answer.put_nowait(b"3")
        assert await reader.readexactly(2) == b"23"
        writer.close()
        await writer.wait_closed()
        await done.wait()
        await links.stop()
        server.close()
        await server.wait_closed()

    asyncio.run(work())


def test_a_proxy_knows_a_node_by_its_process() -> None:
    mine = Proxies({7: "PLAINTEXT"}, lambda node: os.getpid())
    nobodys = Proxies({7: "PLAINTEXT"}, lambda node: None)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        port, peer = connection.getsockname()[1], server.getsockname()[1]
        assert mine.owner_of(port, peer) == 7
        assert nobodys.owner_of(port, peer) == CLIENTS
        assert mine.owner_of(peer, port) == CLIENTS  # not accepted: nobody has it yet
