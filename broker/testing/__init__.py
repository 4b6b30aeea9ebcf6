"""A name server and a group of brokers inside a test's process, on real sockets (docs/testing.md).

They run on Trio in a thread of their own, whatever the test runs on. So a test that blocks its event loop, or has a
clock of its own, does not hold them up.
"""
