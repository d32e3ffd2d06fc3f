"""A page of /metrics -> a Snapshot of each engine on it."""
