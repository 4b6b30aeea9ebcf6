"""Producers under test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode
from broker.trace import TraceHeader, TraceWriter, parse_event
from log.formats.properties import get_property
from log.formats.record import decode_record
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime

SEND = RequestCode.SEND_MESSAGE_V2


def unique_keys(broker: Broker) -> list[bytes | None]:
    return [get_property(decode_record(record).properties, b"UNIQ_KEY") for record in broker.records()]


@contextlib.asynccontextmanager
async def producing(runtime: ClientRuntime, **options: Any) -> AsyncIterator[Producer]:
    async with Producer(NAME_SERVER, group="p", runtime=runtime, **options) as producer:
        yield producer


class Recorded:
    """A trace writer whose events are kept as they are."""

    def __init__(self) -> None:
        self.writer = TraceWriter(
            lambda data: None, TraceHeader("client", "test", "mock", 0), buffered_events=65_535
        )

    def events(self) -> list[Any]:
        return [parse_event(list(record)) for record in self.writer._buffer]
