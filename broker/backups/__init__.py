"""Backups, apart from who asks for them: their directory, what is requested next, a store that is made of one.

No sockets and no clocks, so that `broker/tools/backup` and the simulator drive the same code.
"""
