"""The compiled loops over record batches (numba)."""
