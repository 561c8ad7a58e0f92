"""Kafka's partitioner over a whole Arrow column of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def partitions_for_keys(
    keys: Any, partition_count: int, null_partition: int = 0
) -> npt.NDArray[np.int32]:
    """Returns the partition of each key of a binary or string array; `null_partition` for a null
    key.

    Equals `partition_for_key` of each. Raises ValueError for a count below 1.
    """
    if partition_count < 1:
        raise ValueError(f"{partition_count} partitions")
    from tidemark.records import columns
    from tidemark.records.kernels import codec as kernels

    out = np.empty(len(keys), np.int32)
    kernels.partition_keys(columns.binary_column(keys), partition_count, null_partition, out)
    return out
