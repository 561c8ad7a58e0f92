"""The bound of records that wait to be committed: without a majority the log must not grow on."""

from __future__ import annotations

import asyncio

import pytest

from tests.quorum.replica.servers import RaftNodes
from tidemark.errors import ThrottlingQuotaExceededError


def test_appends_are_refused_while_too_many_wait_to_be_committed(monkeypatch):
    monkeypatch.setattr("quorum.replica.server.MAX_UNCOMMITTED_RECORDS", 10)

    async def scenario():
        nodes = RaftNodes(voters=3)
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        values = [b"%d" % n for n in range(11)]
        leader.append(leader.epoch, values)  # nothing is committed within one turn of the loop
        end_offset = leader.log_end_offset
        with pytest.raises(ThrottlingQuotaExceededError, match="wait to be committed"):
            leader.append(leader.epoch, [b"too many"])
        assert leader.log_end_offset == end_offset
        await nodes.committed(values)
        leader.append(leader.epoch, [b"again"])
        await nodes.committed([*values, b"again"])
        await nodes.stop_all()

    asyncio.run(scenario())
