"""Transactions in the simulated cluster: copiers, writers, zombies, and coordinators that crash."""
