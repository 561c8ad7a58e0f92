"""Every RPC of the services Admin and Controller has one row that says how it is served."""

from __future__ import annotations

import inspect
import pickle
from typing import get_type_hints

import pytest

from quorum.controller.requests import REQUESTS
from quorum.services.admin_service import ADMIN_REQUESTS, LogDirAdmin
from tidemark.client import Admin, AsyncAdmin
from tidemark.wire.rpcs import ADMIN, CONTROLLER, Rpc, rpcs_of


@pytest.mark.parametrize("rpc", rpcs_of(ADMIN), ids=lambda rpc: rpc.name)
def test_every_rpc_of_admin_is_served(rpc: Rpc) -> None:
    assert rpc.request in ADMIN_REQUESTS
    assert "error_code" in rpc.response.DESCRIPTOR.fields_by_name, "failures are answers"


@pytest.mark.parametrize("rpc", rpcs_of(CONTROLLER), ids=lambda rpc: rpc.name)
def test_every_rpc_of_the_controller_has_a_rule(rpc: Rpc) -> None:
    assert rpc.request in REQUESTS
    assert "error_code" in rpc.response.DESCRIPTOR.fields_by_name, "failures are answers"


def test_no_rule_is_for_what_is_no_rpc_and_a_request_names_its_rpc() -> None:
    rpcs = [*rpcs_of(ADMIN), *rpcs_of(CONTROLLER)]
    assert set(REQUESTS) <= {rpc.request for rpc in rpcs}
    assert len({rpc.request for rpc in rpcs}) == len(rpcs)
    assert len({rpc.name for rpc in rpcs}) == len(rpcs)


def test_what_changes_metadata_names_its_time() -> None:
    for rpc in rpcs_of(ADMIN):
        if rpc.request in REQUESTS:
            assert "timeout_ms" in rpc.request.DESCRIPTOR.fields_by_name


def test_a_broker_answers_with_the_messages_of_the_rpc() -> None:
    rpcs = {rpc.name: rpc for rpc in rpcs_of(ADMIN)}
    answers = {
        "DescribeLogDirs": LogDirAdmin.describe_log_dirs,
        "AlterReplicaLogDirs": LogDirAdmin.alter_replica_log_dirs,
    }
    for name, answer in answers.items():
        assert get_type_hints(answer) == {
            "request": rpcs[name].request,
            "return": rpcs[name].response,
        }


def test_the_blocking_client_has_every_call_of_the_asyncio_one() -> None:
    def public(face: type) -> dict[str, object]:
        return {n: f for n, f in vars(face).items() if not n.startswith("_")}

    calls = {n: f for base in AsyncAdmin.__mro__ for n, f in public(base).items()}
    blocking = public(Admin)
    assert blocking.keys() == calls.keys()
    for name, function in blocking.items():
        assert inspect.signature(function) == inspect.signature(getattr(AsyncAdmin, name))  # type: ignore[arg-type]
        assert function.__doc__
        assert not inspect.iscoroutinefunction(function)
        assert pickle.loads(pickle.dumps(function)) is function
