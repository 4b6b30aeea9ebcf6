"""The state that every replica derives from the log: topics, consumer groups, consumer offsets, order locks, open
transactions.

`commands` are the changes, `metadata` is the state that they change, `snapshot` writes it down.
"""
