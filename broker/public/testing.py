"""A broker for the tests of programs that use one (docs/testing.md)."""

from broker.testing.broker import RunningBroker, broker

__all__ = ["RunningBroker", "broker"]
