"""The tasks of a leader and a follower in the tier: copy, expiration, deletion.

- `planner`: every decision, pure: segments to copy, segments to delete, the bounds of reads.
- `copier`: a leader's copy task, and a follower's task that follows the copies.
- `expirer`: retention in the tier, and the remains of earlier failures.
- `checking`: transaction indexes are checked before their first use.
- `uploads`: the uploads of the node, each alive until its thread ends.
- `quota`: the rate of copies to the tier.
- `deleter`: the deletion of one segment, in steps that may be repeated.
- `remover`: the removal of deleted topics, by the leader of the metadata partition.
- `history`: the leader epochs of a log, checked against the tier and rebuilt from it.
- `recovery`: the log that the tier has, for a leader without one, pure.
- `unrecorded`: segments in the store that the metadata does not name.
- `rebuild`: the segments to record again where the metadata is lost, pure.
- `leases`: the ranges that jobs hold against deletion, kept in the store.
- `partition`: the state of one hosted partition, and the files of its segments.

`tiering.manager` runs the tasks; `tiering.reading` uses `planner`, `recovery` and `unrecorded`;
outsiders import only `leases`.

A segment is copied only below the last stable offset, and each copy has an id of its own. Local
retention has a segment only after its copy is finished. The log start offset moves before a remote
segment is deleted (RULES.md rule 10).
"""
