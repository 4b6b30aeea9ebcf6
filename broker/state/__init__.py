"""The state that every replica derives from the log: topics, consumer groups, consumer offsets, order locks, open
transactions.

`commands` are the changes, `metadata` is what they are applied to, `snapshot` writes it down.
"""
