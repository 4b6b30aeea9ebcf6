"""Members of Trivet's own client and of the Java client in one group: they share its queues, and its locks.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.interop.clients import Client
from tests.interop.cluster import Cluster, make_topic
from tests.interop.processes import Child, wait_until
from tests.interop.test_groups_and_failover import QUEUES, SETTLE_LIMIT_S, wait_for_split
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, bodies

pytestmark = [pytest.mark.java_only, pytest.mark.core, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def trivet_member(client: Client, topic: str, group: str, *options: str) -> Iterator[Child]:
    """A member with Trivet's client."""
    argv = [sys.executable, "-m", "tests.interop.trivet_member", "--namesrv", client.name_server]
    argv += ["--topic", topic, "--group", group, *options]
    with Child(argv, log=client.folder / f"trivet-{group}.log", cwd=ROOT) as member:
        member.wait_for("started", SETTLE_LIMIT_S)
        yield member


def test_both_kinds_of_members_share_the_queues(client: Client, cluster: Cluster, group: str) -> None:
    topic = make_topic(cluster, f"mixed-{group}", QUEUES)
    java = client.start("push", topic=topic, group=group)
    wait_for_split(client, topic, [java], [QUEUES])
    with trivet_member(client, topic, group) as trivet:
        wait_for_split(client, topic, [java, trivet], [QUEUES // 2, QUEUES // 2])
        java.stop()
        wait_for_split(client, topic, [trivet], [QUEUES])


def test_both_kinds_of_members_respect_each_others_locks(
    client: Client, cluster: Cluster, group: str
) -> None:
    """As `test_ordered_queues_have_one_holder_at_a_time`, with a member of each kind that comes and goes."""
    topic = make_topic(cluster, f"mixed-locks-{group}", queues=4)
    sender = client.start("send", topic=topic, group="interop-sender", mode="orderly", count=0, pause_ms=10)
    sender.wait_for("sent", DELIVERY_LIMIT_S)
    members: dict[str, Child] = {}

    def java(name: str) -> Child:
        member = client.start("push", topic=topic, group=group, orderly=True, hold_ms=20, instance=name)
        member.wait_for("message", SETTLE_LIMIT_S, count=20)
        return member

    members["first"] = java("first")
    with trivet_member(client, topic, group, "--orderly", "--hold-ms", "20") as members["trivet"]:
        members["trivet"].wait_for("message", SETTLE_LIMIT_S, count=20)
        members["second"] = java("second")
        members["first"].stop()
        handled = len(members["trivet"].of("message"))
        members["trivet"].wait_for("message", SETTLE_LIMIT_S, count=handled + 20)
    handled = len(members["second"].of("message"))
    members["second"].wait_for("message", SETTLE_LIMIT_S, count=handled + 20)
    sender.stop()
    last = {f"m-{event['index']}" for event in sender.of("sent")}
    wait_until(
        lambda: last <= {body for member in members.values() for body in bodies(member.of("message"))},
        SETTLE_LIMIT_S,
        "all that was sent",
    )

    spans: dict[int, list[tuple[int, int, int, str]]] = defaultdict(list)
    for name, member in members.items():
        begun: dict[tuple[int, int], int] = {}
        for event in member.events:
            place = (event.get("queue", -1), event.get("offset", -1))
            if event["event"] == "begin":
                begun[place] = event["at_ms"]
            elif event["event"] == "message":
                spans[place[0]].append((begun[place], event["at_ms"], place[1], name))
    for queue, handled_spans in spans.items():
        handled_spans.sort()
        for (_, end, offset, holder), (begin, _, next_offset, next_holder) in pairwise(handled_spans):
            assert begin >= end, f"queue {queue}: {holder} held {offset}, {next_holder} began {next_offset}"
        offsets = list(dict.fromkeys(offset for _, _, offset, _ in handled_spans))
        assert offsets == list(range(len(offsets))), f"queue {queue}: each for the first time in order"
