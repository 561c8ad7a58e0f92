"""A replica of the metadata log at work: the edge around the pure core of `quorum.raft`."""
