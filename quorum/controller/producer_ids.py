"""AllocateProducerIds: a block of producer ids for a broker (KIP-730)."""

from __future__ import annotations

from quorum.controller.cluster_control import check_broker_epoch
from quorum.controller.result import ControllerResult
from quorum.image import MetadataImage
from quorum.image.records import producer_ids_record
from tidemark.v1 import controller_pb2

PRODUCER_ID_BLOCK_SIZE = 1_000


def allocate_producer_ids(
    image: MetadataImage, request: controller_pb2.AllocateProducerIdsRequest
) -> ControllerResult[controller_pb2.AllocateProducerIdsResponse]:
    """Allocates the next block of ids, which no other broker gets.

    Raises StaleBrokerEpochError.
    """
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    record = producer_ids_record(
        start + PRODUCER_ID_BLOCK_SIZE, request.broker_id, request.broker_epoch
    )
    response = controller_pb2.AllocateProducerIdsResponse(
        producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK_SIZE
    )
    return ControllerResult.atomic([record], response)
