"""Transactions in the client: the producer's part of them, and their administration.

    core                     the pure core of a transactional producer: its states
    producing                its edge: calls of coordinators, flushes, ends
    admin, sync_admin        `AsyncAdmin.transactions` and its blocking form (KIP-664, KIP-939)
    leaders                  producers and markers of partitions, at their leaders

The coordinator of a transactional id decides, the leaders of partitions hold its records (KIP-98).
Administration (KIP-664) therefore compares both: a hanging transaction is open at a leader, and
unknown to every coordinator. Nothing here may take an answer that is missing for an answer that
says no.

A producer's transaction ends committed, aborted or in doubt, and its state tells which call comes
next. After any failure of a record or of an offset, nothing but an abort is allowed.

The modules are private to `tidemark.client`.
"""
