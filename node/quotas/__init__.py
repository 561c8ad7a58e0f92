"""Quotas that a broker holds its clients to (KIP-13, KIP-124). Pure, on time given.

- `clients`: the use of quotas by each client, and its time to wait.
- `replication`: the throttle of replicas that catch up, on either side (KIP-73).

The quotas come from the metadata image; `tidemark.quotas` has their entities and the arithmetic.
The edge is `node/serving/throttling.py`. It names the client of a request and has the answer carry
the time to wait. A client that does not wait is delayed (KIP-219).

Each broker holds clients to the quota by itself, so a client of three leaders may have three times
the rate. Nothing is counted while no quota is set.
"""
