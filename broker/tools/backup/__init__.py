"""Backups of a running group, read by an administrator (docs/backup.md); `broker/backups` has what they are."""
