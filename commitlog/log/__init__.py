"""One partition's log: appends, look-ups, retention, flushes, recovery."""
