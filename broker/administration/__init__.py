"""What operators ask of a broker: connections, statistics, status, settings, members of the group."""
