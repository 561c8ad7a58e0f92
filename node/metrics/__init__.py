"""Metrics for Prometheus, and probes, over HTTP.

- `families`: metrics by Kafka's names as families of Prometheus (pure).
- `sources`, `requests`, `upkeep`, `tier`: the families of a node by subject (pure).
- `endpoint`: an HTTP server for GET requests that is small and bounded.
- `debugging`: stacks of tasks and threads, samples of the loop.
- `harms`: the partitions that a restart would harm (pure).
- `exposition`: the paths of a node: `/metrics`, `/livez`, `/readyz`, `/startupz`, `/restartz`.

`node.server` starts `exposition`; it and `node.broker` make their families by `families` and
these three. They are imported when a listener is configured, because Prometheus's client costs 0.1
s of CPU.

A scrape reads counts that the node keeps anyway, on the event loop. Between scrapes a metric costs
no more than an addition where bytes pass. A disk that hangs is asked in a thread. METRICS.md lists
all names, and a test compares it with a node.
"""
