"""Two producers and a consumer that go on while nodes come and go, and what is counted of them."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile, pairwise

from tests.interop.clients import Client
from tests.interop.configured import ROOT
from tests.interop.processes import Child, Event
from tests.interop.test_groups_and_failover import FAILOVER_LIMIT_S, SETTLE_LIMIT_S
from tests.interop.test_send_and_receive import bodies

PAUSE_MS = 10
"""Between two sends of a producer: what fails while a node is away is counted, and not how fast it fails."""
TIMEOUT_MS = 10_000
"""Of a send. By default it is three seconds with both clients, which a busy machine takes, too."""
FAILURES = ("failed", "again")
"""A send that ended with an exception in the application; and one that was then made again."""
NO_ANSWER = re.compile(r"sendDefaultImpl call timeout|wait response on the channel \S+ timeout")
"""As the Java client says when its connection was lost behind a request: it waits for the answer all the same."""
SLOWEST = 3


class Traffic:
    """A producer and a push consumer of the client under test, and a producer of Trivet's, on one topic."""

    def __init__(self, client: Client, topic: str, *, name: str, messages: int) -> None:
        """`name` begins the names of their groups; each producer sends so many `messages` between two changes."""
        self.client = client
        self._messages = messages
        self.consumer = client.start("push", topic=topic, group=f"{name}-consumers")
        self.consumer.wait_for("started", SETTLE_LIMIT_S)
        options: dict[str, str | int] = {"count": 0, "pause_ms": PAUSE_MS, "timeout_ms": TIMEOUT_MS}
        self.producer = client.start("send", topic=topic, group=name, prefix="theirs-", **options)
        argv = [sys.executable, "-m", "tests.interop.trivet_sender", "--namesrv", client.name_server]
        argv += ["--topic", topic, "--group", f"{name}-trivet"]
        argv += ["--pause-ms", str(PAUSE_MS), "--prefix", "own-"]
        self.own = Child(argv, log=client.folder / "trivet-sender.log", cwd=ROOT)
        self.go_on()

    def go_on(self, for_s: float = 0) -> None:
        """Returns when both have sent another round of messages, and the time is over."""
        end_s = time.monotonic() + for_s
        while True:
            for sender in (self.producer, self.own):
                sender.wait_for("sent", FAILOVER_LIMIT_S, count=len(sender.of("sent")) + self._messages)
            if time.monotonic() >= end_s:
                return

    def stop(self) -> None:
        """Ends the producers."""
        self.producer.stop()
        self.own.stop()

    def wait_for_everything(self) -> None:
        """Behind `stop`; returns when the consumer has all that was acknowledged."""
        acknowledged = {f"theirs-{event['index']}" for event in self.producer.of("sent")}
        acknowledged |= {f"own-{event['index']}" for event in self.own.of("sent")}
        self.consumer.wait_until(
            lambda: acknowledged <= set(bodies(self.consumer.of("message"))), SETTLE_LIMIT_S, "everything"
        )


@contextmanager
def traffic(client: Client, topic: str, *, name: str, messages: int) -> Iterator[Traffic]:
    """Runs while the block does; no send of Trivet's may fail meanwhile, and nothing be lost."""
    running = Traffic(client, topic, name=name, messages=messages)
    try:
        yield running
    finally:
        running.stop()
    print(told(client.name, running.producer), told("trivet", running.own), sep="\n")
    assert failures(running.own) == []
    running.wait_for_everything()
    received = bodies(running.consumer.of("message"))
    print(f"{len(received) - len(set(received))} messages came again")
    client.stop_all()  # nodes linger for those who are connected


def failures(sender: Child) -> list[Event]:
    """Its sends that failed since it was connected."""
    return [event for event in once_connected(sender) if event["event"] in FAILURES]


def once_connected(sender: Child) -> list[Event]:
    """Its events from the first acknowledgement on: how a client starts is not what is looked at."""
    return list(dropwhile(lambda event: event["event"] != "sent", sender.events))


def told(name: str, sender: Child) -> str:
    """What was counted, in a line."""
    sent = sender.of("sent")
    reasons = Counter(re.sub(r"cost \[\d+\]", "cost [..]", event["error"]) for event in failures(sender))
    pause_ms = max(int(after["at_ms"]) - int(before["at_ms"]) for before, after in pairwise(sent))
    slowest = sorted((round(event.get("ms", 0)) for event in sent), reverse=True)[:SLOWEST]
    counts = f"{len(sent)} sent, {reasons.total()} failed, longest pause {pause_ms} ms"
    return f"{name}: {counts}, slowest sends {slowest} ms, {dict(reasons)}"
