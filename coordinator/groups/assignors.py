"""Server-side assignors of consumer groups (KIP-848), by name. Pure functions.

    uniform    balanced to within one partition, and sticky
    range      for each topic a contiguous range, the same for topics of one size

An assignor gets all members with their present target, and returns the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordinator.groups.range_assignor import assign_ranges
from coordinator.groups.subscribers import MemberSubscription, Partitions, TopicView
from coordinator.groups.uniform import assign_uniformly

Assignor = Callable[[Mapping[str, MemberSubscription], TopicView], dict[str, Partitions]]

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
DEFAULT_ASSIGNOR = "uniform"
