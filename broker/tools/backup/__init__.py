"""Backups of a running group, and stores that are made of them (docs/backup.md).

`copying` asks a node for its entries, `directory` keeps and checks them, `restoring` makes a store.
"""
