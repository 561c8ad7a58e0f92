"""The reading side of the consumer: fetches ahead of the reader, and hands over what it fetched.

    core       the pure core: seeks, answers, errors and time in; requests and wake-ups out
    partition  one assigned partition: its phase, its positions, and its fetched batches
    answers    whether the batches of an answer are the ones that were asked for
    damage     CRC checks and decoding; where a buffer is damaged, the part before it
    requests   settings, metadata, requests and effects of the core
    fetcher    the edge: carries the core's requests out on the event loop
    reading    the hand-over of polls: loads what is fetched, and moves positions in one step

Everything here is private to `tidemark.client`. The room promises:

- A poll is atomic. Cancelled or failed, it delivers nothing and moves no position.
- A corrupt batch stops its partition until the caller seeks, and no other.
- An error that nobody foresaw fails the partitions it concerns, is logged, and fetching goes on.
"""
