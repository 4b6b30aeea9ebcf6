"""The Trio shell of a broker and of a name server: sockets, timers, worker threads, signals, files.

It brings bytes and time to what has no I/O (broker/node/running.py, broker/name_server/sessions.py), and has no logic
of its own.
"""
