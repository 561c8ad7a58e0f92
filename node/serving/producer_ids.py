"""Producer ids, assigned from blocks that the controller allocates (KIP-730).

A block is used up before the next one is requested, with one request in flight. The rest of a block
is never used after the process ends.
"""

from __future__ import annotations

import asyncio

from node.membership.controller_calls import ControllerCaller
from node.membership.identity import BrokerIdentity
from tidemark.errors import BrokerNotAvailableError, raise_for
from tidemark.v1 import controller_pb2 as pb

_TIMEOUT_MS = 15_000


class ProducerIdManager:
    """Assigns the producer ids of one broker."""

    def __init__(self, identity: BrokerIdentity, client: ControllerCaller) -> None:
        self._identity = identity
        self._client = client
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def generate(self) -> int:
        """Returns a producer id that was never assigned before.

        Raises the controller's error if no block is available, and BrokerNotAvailableError
        (retriable) before the broker is registered.
        """
        async with self._lock:
            if self._next >= self._end:
                if self._identity.epoch < 0:
                    raise BrokerNotAvailableError("this broker has not registered yet; try again")
                request = pb.AllocateProducerIdsRequest(
                    broker_id=self._identity.id, broker_epoch=self._identity.epoch
                )
                response = await self._client.call("AllocateProducerIds", request, _TIMEOUT_MS)
                raise_for(response.error_code, response.error_message)
                self._next = response.producer_id_start
                self._end = response.producer_id_start + response.producer_id_len
            found = self._next
            self._next += 1
            return found
