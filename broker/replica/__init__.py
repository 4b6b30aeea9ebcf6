"""One replica of a group: Raft, the log and the replicated state put together, without I/O. `replica.py` is read
first.
"""
