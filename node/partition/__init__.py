"""A partition on this node: the pure core, its log and its waiters, and the registry of all."""
