"""The pure Raft replica of the metadata quorum: events in, effects out; no IO, clock or randomness
of its own.

`Replica.step(event, now_ms) -> Effects` is the whole interface, with `start`, `next_deadline_ms`,
`validate` and a few views. Production, tests and the simulator run the same class. Outsiders may
import `replica`, `config`, `effects` (events and effects), `messages`, `roles`, `voters`,
`voter_history`, `log_view` and `metrics`.

Inside, the room is a star:

    replica --> elections, following, leading, voter_changes --> state --> roles, requests, metrics

`bounds` judges what peers send before any part has it; `refusals` is how a part refuses a message.

`state` holds the fields, the views, the transitions of the role, and what is sent. Each of the four
parts holds the state and handles the messages and timers of its roles; no part knows another.
`replica` makes them and gives each event to the part that handles it.

The replica promises that the epoch never goes back, that one vote is given per epoch, and that
nothing below the high watermark is truncated. `Effects` lists what must be durable before what is
sent. A violation raises RaftInvariantError.

Rules: Raft (Ongaro 2014), KIP-595 (fetch-based replication), KIP-630 (snapshots), KIP-853 (voters
in the log), KIP-996 (pre-vote), KIP-1166 (the high watermark travels in the fetch).
"""
