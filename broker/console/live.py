"""The cluster as pages look at it: a snapshot each second, what changed between two of them, and the figures
of the last quarter of an hour.

A page that cannot keep up misses moments and gets the newest one. Nothing waits for it in a queue: it takes the present
when it can, with the changes behind the last one that it was told, of which the last hundreds are kept for all pages
together. So a page that stands still costs its connection and nothing else, and it holds nobody up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.console.snapshot import GroupView, Observer, Snapshot

INTERVAL_S: Final = 1.0
IDLE_INTERVAL_S: Final = 5.0
"""Seconds between two snapshots while no page is open: only the history needs them."""
POINTS_MAX: Final = 900
CHANGES_MAX: Final = 300


class Point(msgspec.Struct, frozen=True, array_like=True):
    """Figures of one group at one moment, as charts draw them; None where no node told them."""

    at_ms: int
    stored_per_s: float | None
    delivered_per_s: float | None
    lag_max: int | None
    """Entries that the slowest of its nodes has yet to apply."""


class ClusterChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed since the snapshot before."""

    number: int
    at_ms: int
    group: str
    kind: str
    """``leader``, ``no leader``, ``down``, ``back``, ``joined`` or ``left``."""
    node: str | None
    term: int | None = None
    without_ms: int | None = None
    """The time without a leader before a new one was seen; None for any other change."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The present, as a page is told of it."""

    snapshot: Snapshot
    points: dict[str, Point]
    """The newest figures by group."""
    changes: list[ClusterChange]
    """The changes that this page has not been told."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The past, as a page is told of it first."""

    since_ms: int
    points: dict[str, list[Point]]


class Live:
    """One observer of a cluster, and the pages that look through it."""

    def __init__(self, admin: AdminClient, wall_ms: Callable[[], int]) -> None:
        self._observer = Observer(admin)
        self._wall_ms = wall_ms
        self._since_ms = wall_ms()
        self._changes: deque[ClusterChange] = deque(maxlen=CHANGES_MAX)
        self._number = 0
        self._points: dict[str, deque[Point]] = {}
        self._leaderless_since: dict[str, int] = {}
        self._watchers = 0
        self._news = trio.Event()
        self._wanted = trio.Event()
        self.snapshot: Snapshot | None = None

    async def run(self) -> None:
        """Take snapshots until cancelled."""
        while True:
            begin_s = trio.current_time()
            await self.refresh()
            interval_s = INTERVAL_S if self._watchers else IDLE_INTERVAL_S
            self._wanted = trio.Event()
            with trio.move_on_at(begin_s + interval_s):
                await self._wanted.wait()

    async def refresh(self) -> Snapshot:
        """Take a snapshot now, and tell everybody; returns it."""
        snapshot = await self._observer.look(self._wall_ms())
        self._compare(self.snapshot, snapshot)
        self.snapshot = snapshot
        news, self._news = self._news, trio.Event()
        news.set()
        return snapshot

    def history(self) -> History:
        """Return the figures until now."""
        points = {group: list(kept) for group, kept in self._points.items()}
        return History(since_ms=self._since_ms, points=points)

    def watch(self) -> Watch:
        """Return the view of one more page; use it in a ``with`` block."""
        return Watch(self)

    def watched(self, difference: int) -> None:
        """Count a page that comes or goes."""
        self._watchers += difference
        # A wrong count would have the cluster looked at each second for nobody, or too seldom for somebody.
        assert self._watchers >= 0, "a page goes once"
        self._wanted.set()

    async def moment(self, seen: Snapshot | None, number: int) -> Moment:
        """Wait for a snapshot other than `seen`, and return it with the changes behind that number."""
        while self.snapshot is None or self.snapshot is seen:
            await self._news.wait()
        return Moment(
            snapshot=self.snapshot,
            points={group: kept[-1] for group, kept in self._points.items() if kept},
            changes=[change for change in self._changes if change.number > number],
        )

    # What changed --------------------------------------------------------------------------------------------------

    def _compare(self, before: Snapshot | None, now: Snapshot) -> None:
        old = {} if before is None else {group.name: group for group in before.groups}
        for group in now.groups:
            previous = old.get(group.name)
            self._compare_leaders(previous, group, now.at_ms)
            if previous is not None:
                self._compare_nodes(previous, group, now.at_ms)
            kept = self._points.setdefault(group.name, deque(maxlen=POINTS_MAX))
            seconds = 0.0 if before is None else (now.at_ms - before.at_ms) / 1000
            kept.append(_point(previous, group, now.at_ms, seconds))
        for name in self._points.keys() - {group.name for group in now.groups}:
            # In a snapshot without a failure the group is gone. In one with a failure nobody could tell, so its history
            # goes on behind the gap.
            if not now.failure:
                del self._points[name]
                self._leaderless_since.pop(name, None)

    def _compare_leaders(self, before: GroupView | None, now: GroupView, at_ms: int) -> None:
        if now.leader is None:
            if (before is None or before.leader is not None) and now.name not in self._leaderless_since:
                self._leaderless_since[now.name] = at_ms
                lost = None if before is None else before.leader
                self._tell(at_ms, now.name, "no leader", lost, term=now.term)
            return
        if before is None:
            self._tell_of_leaders_before(now)
        since_ms = self._leaderless_since.pop(now.name, None)
        if before is None or (before.leader, before.term) != (now.leader, now.term) or since_ms is not None:
            without_ms = None if since_ms is None else at_ms - since_ms
            begun_ms = at_ms if before is not None else self._leads_since(now) or at_ms
            self._tell(begun_ms, now.name, "leader", now.leader, term=now.term, without_ms=without_ms)

    def _tell_of_leaders_before(self, now: GroupView) -> None:
        """Tell pages of the leaders of earlier terms, from before this console looked, which the nodes remember."""
        for leader in self._observer.leaders.get(now.name, ()):
            if now.term is None or leader.term < now.term:
                self._tell(leader.at_ms, now.name, "leader", leader.node, term=leader.term)

    def _leads_since(self, now: GroupView) -> int | None:
        """Return since when the nodes know the leader that they have."""
        known = (leader for leader in self._observer.leaders.get(now.name, ()) if leader.term == now.term)
        return next((leader.at_ms for leader in known), None)

    def _compare_nodes(self, before: GroupView, now: GroupView, at_ms: int) -> None:
        old = {node.node: node for node in before.nodes}
        for node in now.nodes:
            if node.node not in old:
                self._tell(at_ms, now.name, "joined", node.node)
            elif (node.error is None) != (old[node.node].error is None):
                self._tell(at_ms, now.name, "back" if node.error is None else "down", node.node)
        for name in sorted(old.keys() - {node.node for node in now.nodes}):
            self._tell(at_ms, now.name, "left", name)

    def _tell(
        self,
        at_ms: int,
        group: str,
        kind: str,
        node: str | None,
        *,
        term: int | None = None,
        without_ms: int | None = None,
    ) -> None:
        self._number += 1
        self._changes.append(
            ClusterChange(
                number=self._number,
                at_ms=at_ms,
                group=group,
                kind=kind,
                node=node,
                term=term,
                without_ms=without_ms,
            )
        )


class Watch:
    """One page's view."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._seen: Snapshot | None = None
        self._number = 0

    def __enter__(self) -> Watch:
        self._live.watched(1)
        return self

    def __exit__(self, *details: object) -> None:
        self._live.watched(-1)

    async def next(self) -> Moment:
        """Wait for what this page has not been told."""
        moment = await self._live.moment(self._seen, self._number)
        self._seen = moment.snapshot
        if moment.changes:
            self._number = moment.changes[-1].number
        return moment


def _point(before: GroupView | None, now: GroupView, at_ms: int, seconds: float) -> Point:
    lags = [node.lag for node in now.nodes if node.lag is not None]
    return Point(
        at_ms,
        _rate(before, now, "stored", seconds),
        _rate(before, now, "delivered", seconds),
        max(lags, default=None),
    )


def _rate(before: GroupView | None, now: GroupView, figure: str, seconds: float) -> float | None:
    """Return by how much a figure grew on all nodes together since the snapshot before, per second; None where no node
    tells. A node that has started anew counts from 0."""
    if before is None or seconds <= 0:
        return None
    old = {node.node: node for node in before.nodes}
    rates = []
    for node in now.nodes:
        count = getattr(node, figure)
        previous = getattr(old[node.node], figure) if node.node in old else None
        if count is None or previous is None:
            continue
        rates.append((count - previous if count >= previous else count) / seconds)
    return round(sum(rates), 1) if rates else None
