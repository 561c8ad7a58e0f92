"""Rules over histories, and the workload that writes them."""
