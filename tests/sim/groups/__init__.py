"""Consumer groups in the simulated cluster: members, pauses, and coordinators that crash."""
