"""The Trio shell of a broker and of a name server: sockets, timers, worker threads, signals, files. It has no
logic of its own.
"""
