"""Raft's invariants, judged from what the replicas recorded: on DataFrames, and in plain Python."""
