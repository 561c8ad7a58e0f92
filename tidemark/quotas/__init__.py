"""Quotas: the entities that they are for, and the arithmetic of rates. Pure.

`entities` has the names that a quota can have: a user, a client id, or both (KIP-13, KIP-55). It
also has the order in which quotas apply to a client. Outsiders import both modules of the room:

- `tidemark.quotas.entities`: `QuotaEntity`, the keys of quotas, and `applying_to`.
- `tidemark.quotas.rates`: `TokenBucket`, a limit on a rate with room for bursts, and
  `WindowedQuota`, a limit on a rate over windows.

Time is an argument of every call, in seconds of any monotonic clock. Nothing here waits: a caller
gets the time to wait, and decides who waits for it. A broker answers at once and has the client
wait (KIP-219).
"""
