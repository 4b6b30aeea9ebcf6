"""Requests of operators to a broker: connections, statistics, status, settings, members of the group."""
