"""pytest loads this by its entry point: the fixture ``trivet_broker`` (docs/testing.md)."""

from broker.testing.fixtures import pytest_addoption, trivet_broker

__all__ = ["pytest_addoption", "trivet_broker"]
