"""The consumer as a member of a group (KIP-848): heartbeats, assignment, committed offsets.

    core          the pure core: answers and time in, heartbeats and the target assignment out
    member        the edge: heartbeats in the background, everything else in a poll
    iterating     `async for record in consumer`
    requests      offsets in requests and answers
    admin         groups as an administrator sees them; `sync_admin` is its blocking form

Everything here is private to `tidemark.client`. The room promises:

- Heartbeats go on while the application works, for as long as max.poll.interval.ms.
- An assignment changes in a poll only, so what an earlier poll returned counts as processed then.
- A partition is given up after its position is committed and the listener was told.
- After any failure the member tells all, and a fenced one gives up everything before it joins.
"""
