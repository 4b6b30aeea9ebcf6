"""Producers and consumers by group: heartbeats, members, order locks, and what a broker asks of its clients."""
