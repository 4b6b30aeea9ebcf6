"""The client for programs that do not run on Trio: it does, in a thread of its own.

The protocol is there once, so what it promises holds here, too; a call costs a change of threads and back. While the
program is busy, heartbeats go on and messages are fetched ahead.
"""
