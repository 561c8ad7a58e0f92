"""The tasks of a leader and a follower: copy, expire, delete; and the pure planner."""
