"""Answers about the answering node itself: its certificates, its failed tasks, its log.

Controllers and brokers serve them alike. No metadata has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tidemark
from tidemark import logs
from tidemark.config import ServerConfig
from tidemark.config.security import uses_ssl
from tidemark.v1 import admin_pb2
from tidemark.wire.credentials import read_pems

_Response = admin_pb2.DescribeNodeResponse
FAILED_TASKS_MAX = 1_000
_LOG_BYTES_MAX = 2 << 20
"""An answer has no more of a log: messages of gRPC are 4 MiB at most by default."""


def describe_node(
    config: ServerConfig, failed_tasks: Iterable[_Response.FailedTask]
) -> admin_pb2.DescribeNodeResponse:
    """State of the node that `config` is of. Reads the files of certificates."""
    return _Response(
        node_id=config.node_id,
        version=tidemark.__version__,
        certificates=certificates_of(config),
        failed_tasks=failed_tasks,
    )


def certificates_of(config: ServerConfig) -> Iterator[_Response.Certificate]:
    """The certificate of each listener with TLS, as its files are now. Reads files."""
    for name in sorted(config.listener_endpoints()):
        if not uses_ssl(config.security.protocol_of(name)):
            continue
        told = _Response.Certificate(listener=name)
        # A tenth of a second of CPU, which a node without TLS need not spend.
        from cryptography import x509

        try:
            chain = read_pems(config.security_of(name).ssl).chain
            own = x509.load_pem_x509_certificates(chain)[0]
        except Exception as error:  # of libraries, too: the node keeps its former certificate
            told.error_message = str(error) or repr(error)
        else:
            told.subject = own.subject.rfc4514_string()
            told.not_after_ms = int(own.not_valid_after_utc.timestamp() * 1000)
        yield told


def describe_node_log(
    request: admin_pb2.DescribeNodeLogRequest,
) -> admin_pb2.DescribeNodeLogResponse:
    """The newest lines of the process's log."""
    lines = logs.recent_lines(request.max_lines)
    size_bytes, first = 0, len(lines)
    while first and size_bytes < _LOG_BYTES_MAX:
        first -= 1
        size_bytes += len(lines[first].encode(errors="replace"))
    told = [line.encode(errors="replace").decode() for line in lines[first:]]
    return admin_pb2.DescribeNodeLogResponse(lines=told)
