"""A web console: brokers, topics, partitions, the tier, groups, records and the quorum, to look at.

It changes nothing: it takes GET requests, listens on a loopback address, and asks the cluster as a
client of its own. Where users log in by password, each one sees what the ACLs allow that user.

- `server`: the console of a node or of a command; outsiders import this one alone.
- `routes`: the paths, and which calls of a client answer each.
- `visitors`: the clients of the users who are logged in, a bounded number.
- `views`, `group_views`, `record_views`: values for pages of what the cluster tells (pure).
- `browsing`: reads a page of records of a partition.
- `timeline`: leaders and epochs of the quorum as they were seen, a bounded number (pure).
- `web`: an HTTP server for GET requests, against hostile pages in the same browser.
- `static`: the page itself: HTML, style and script, which work without any other server.

The room promises that nothing of a cluster is taken for markup or script. No request holds more
memory, connections or time than its limits, and no failure of the console stops a node.
"""
