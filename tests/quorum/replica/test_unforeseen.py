"""Errors that nothing foresaw: a failed task stops the replica, and a failed answer is logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quorum.replica.service import RaftService
from quorum.replica.unforeseen import CAUSES_MAX, LOG_INTERVAL_S, UnforeseenErrors
from tests.quorum.replica.servers import RaftNodes
from tidemark.errors import ErrorCode, FatalError, NotControllerError
from tidemark.v1 import raft_pb2


def raised(kind=RuntimeError):
    try:
        raise kind("unforeseen")
    except Exception as error:
        return error


def test_the_same_cause_is_logged_once_in_a_while_with_its_traceback(caplog):
    now_s = 0.0
    errors = UnforeseenErrors(lambda: now_s)
    for _ in range(5):
        errors.log("FetchRequest", raised())
    errors.log("FetchRequest", raised(ValueError))
    errors.log("FetchRequest", NotControllerError("typed"))
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError, ValueError]
    now_s = LOG_INTERVAL_S
    errors.log("FetchRequest", raised())
    assert len(caplog.records) == 3


def test_the_causes_that_are_remembered_have_a_limit():
    errors = UnforeseenErrors(lambda: 0.0)
    logging.disable(logging.CRITICAL)
    for number in range(3 * CAUSES_MAX):
        errors.log("FetchRequest", raised(type(f"Error{number}", (Exception,), {})))
    logging.disable(logging.NOTSET)
    assert len(errors._due_s) <= CAUSES_MAX


def test_an_unforeseen_error_of_a_request_is_its_answer_and_is_logged(caplog):
    async def handle(request):
        raise raised()

    async def scenario():
        service = RaftService(handle, lambda: None)
        for _ in range(3):
            answer = await service.Fetch(raft_pb2.QuorumFetchRequest(), None)
            assert answer.error_code == int(ErrorCode.UNKNOWN_SERVER_ERROR)
        changed = await service.RemoveRaftVoter(raft_pb2.RemoveRaftVoterRequest(), None)
        assert changed.error_code == int(ErrorCode.UNKNOWN_SERVER_ERROR)

    asyncio.run(scenario())
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError]


def test_a_task_that_fails_unforeseen_stops_the_replica_with_a_traceback(caplog):
    async def fails():
        raise raised()

    async def scenario():
        nodes = RaftNodes(voters=1)
        await nodes.start(1)
        leader = await nodes.elected()
        leader._spawn(fails())
        with pytest.raises(FatalError, match="unforeseen"):
            await leader.fatal
        await nodes.stop_all()

    asyncio.run(scenario())
    (told,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert told.exc_info[0] is RuntimeError
