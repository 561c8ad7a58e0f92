"""The checks of a leader's append against the known producers (Kafka's ProducerAppendInfo).

The next sequence is the last one + 1, and 0 after 2^31-1. A new epoch begins at sequence 0, and so
does each transaction (KIP-890). An unknown producer may otherwise begin anywhere, because its state
may have expired. An older epoch is refused.
"""

from __future__ import annotations

from commitlog.log.validation import Prepared
from commitlog.segment.producer_state import ProducerBatch, ProducerEntry, ProducerStateManager
from commitlog.types import AppendInfo, AppendOrigin
from tidemark.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
)
from tidemark.records.control import EndTransactionMarker, end_transaction
from tidemark.records.header import MAX_SEQUENCE
from tidemark.records.header import BatchHeader as Header


def find_duplicate(
    prepared: Prepared, producers: ProducerStateManager, log_start_offset: int, origin: AppendOrigin
) -> AppendInfo | None:
    """Returns the result for a client's append whose first known batch was appended before; None if
    it is new.
    """
    for header in prepared.headers if origin is AppendOrigin.CLIENT else ():
        found = producers.find_duplicate(header)
        if found is not None:
            return AppendInfo(
                found.first_offset,
                found.last_offset,
                found.timestamp_ms,
                prepared.log_append_time_ms,
                log_start_offset,
                duplicate=True,
            )
    return None


def check_producers(
    prepared: Prepared,
    producers: ProducerStateManager,
    origin: AppendOrigin,
    *,
    verified: bool = False,
) -> None:
    """Raises if a leader must not append these batches; changes nothing. Only clients count
    sequences: batches that a coordinator writes for a producer (offsets committed in its
    transaction) have none.

    Raises InvalidProducerEpochError for an epoch older than the producer's, and
    OutOfOrderSequenceNumberError for a gap. Raises InvalidTxnStateError for a batch outside of the
    open transaction, and for a client's transactional batch that is not `verified`. Nobody would
    end its transaction: read_committed readers, the tier and the cleaner would stop there. Raises
    TransactionCoordinatorFencedError for a marker of an older coordinator than the last one's.
    """
    staged: dict[int, ProducerEntry] = {}
    for header, source in zip(prepared.headers, prepared.sources, strict=True):
        if header.producer_id < 0:
            continue
        known = staged.get(header.producer_id) or producers.producers.get(header.producer_id)
        known = known or ProducerEntry(header.producer_id)
        ended = end_transaction(source, header.position) if header.is_control else None
        _check_one(header, known, ended, of_client=origin is AppendOrigin.CLIENT, verified=verified)
        if len(prepared.headers) > 1:
            staged[header.producer_id] = _after(header, known, ended)


def add_one(sequence: int) -> int:
    """Returns the sequence after `sequence`: 0 after the greatest one, and at the beginning."""
    return 0 if sequence in (-1, MAX_SEQUENCE) else sequence + 1


def _check_one(
    header: Header,
    known: ProducerEntry,
    ended: EndTransactionMarker | None,
    *,
    of_client: bool,
    verified: bool,
) -> None:
    who, epoch = f"producer {header.producer_id}", known.producer_epoch
    if header.producer_epoch < epoch:
        raise InvalidProducerEpochError(f"{who} has epoch {epoch}; {header.producer_epoch} is old")
    if header.is_control:
        if ended is not None and ended.coordinator_epoch < known.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"{who}: a marker of coordinator epoch {ended.coordinator_epoch} comes behind one"
                f" of {known.coordinator_epoch}"
            )
        return
    if of_client and header.is_transactional and not verified:
        raise InvalidTxnStateError(
            f"{who}: the batch is part of no transaction that a coordinator knows; send it without"
            " a transaction"
        )
    if of_client and epoch < 0 and header.is_transactional and header.base_sequence != 0:
        raise OutOfOrderSequenceNumberError(
            f"{who}: its transaction must begin at sequence 0 here, not {header.base_sequence}: an"
            " earlier batch was not appended, or is lost"
        )
    if of_client and epoch >= 0:
        is_new = header.producer_epoch != epoch
        if is_new and header.base_sequence != 0:
            raise OutOfOrderSequenceNumberError(
                f"{who}: the new epoch {header.producer_epoch} must begin at sequence 0,"
                f" not {header.base_sequence}"
            )
        if not is_new and header.base_sequence != add_one(known.last_sequence):
            raise OutOfOrderSequenceNumberError(
                f"{who}: sequence {header.base_sequence} follows {known.last_sequence}"
            )
    if known.current_txn_first_offset is None:
        return
    if not header.is_transactional:
        raise InvalidTxnStateError(
            f"{who} has a transaction open since offset {known.current_txn_first_offset}; end it"
            " before anything is sent outside of it"
        )
    if header.producer_epoch != epoch:  # its records would be ended as those of the next one
        raise InvalidTxnStateError(
            f"{who} has a transaction of epoch {epoch} open since offset"
            f" {known.current_txn_first_offset}, whose end was lost: `tidemark transactions abort`"
            " ends it"
        )


def _after(
    header: Header, known: ProducerEntry, ended: EndTransactionMarker | None
) -> ProducerEntry:
    """Returns the state after this batch, as far as the check of the next batch needs it."""
    entry = ProducerEntry(
        header.producer_id,
        header.producer_epoch,
        known.coordinator_epoch if ended is None else ended.coordinator_epoch,
        current_txn_first_offset=known.current_txn_first_offset,
    )
    if header.is_control:
        if header.producer_epoch == known.producer_epoch:
            entry.batches.extend(known.batches)
        if ended is not None:
            entry.current_txn_first_offset = None
        return entry
    entry.batches.append(ProducerBatch(header.last_sequence, header.last_offset, 0, -1))
    if header.is_transactional and entry.current_txn_first_offset is None:
        entry.current_txn_first_offset = header.base_offset
    return entry
