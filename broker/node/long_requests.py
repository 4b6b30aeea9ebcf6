"""Requests that take longer than a turn: they are handled in steps, one a turn, and others wait behind a long batch.

So between two steps heartbeats are answered, and whatever else is small. Addresses take turns at the steps: many long
requests of one keep another waiting for one step at a time, not for one of each. Those of one address follow each
other, so that of what they gather in their steps only one has much. Messages that come while a batch
is being stored wait here in their order (`Leadership.check_may_append` raises for them), and go on when it is over,
some in each turn.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from broker.node.forwarding import Forwarding
from broker.remoting.command import RemotingCommand
from broker.replica.leadership import Leadership
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.errors import OverloadedError
from broker.requests.in_turn import InTurn
from broker.requests.responses import refuse

_IN_STEPS_MAX: Final = 4_000
"""Requests that are handled in steps. One that waits has gathered tens of KB at most: its first step's."""

_BATCH: Final = "the batch"
"""The one that is under way takes turns at steps as if it came from an address of this name."""

_RESUMED_IN_A_TURN: Final = 100
"""Requests that have waited for a batch and go on in one turn: some 3 ms of sends."""


class LongRequests:
    """The long requests of one node, and the sends that wait for a batch."""

    def __init__(
        self,
        leadership: Leadership,
        go_on: Callable[[Connection, RemotingCommand, Iterator[None]], None],
        forwarding: Forwarding,
        is_connected: Callable[[Connection], bool],
    ) -> None:
        """`go_on` does the next step of a request."""
        self._leadership = leadership
        self._calls_when_over = leadership.batches.calls_when_over
        self._go_on = go_on
        self._forwarding = forwarding
        self._is_connected = is_connected
        self._in_turn: InTurn[tuple[Connection, RemotingCommand, Iterator[None]]] = InTurn()
        self.in_steps = self._in_turn.by_share
        """The requests that are handled in steps, by share."""
        self._stepped: Iterator[None] | None = None
        """The steps of which `step` does one."""
        self._batch: object | None = None
        """The batch that was under way when a request was kept last."""
        self._batch_steps: Iterator[None] | None = None
        """The steps of the request that began a batch last."""
        self._in_steps_budget = Budget("other long requests", _IN_STEPS_MAX)
        self.behind_batch: deque[tuple[Connection, RemotingCommand, int]] = deque()
        """The requests that came while a long batch was being stored, oldest first, with their places among those of
        their clients."""
        self._budget = Budget("a long batch")

    @property
    def has_more(self) -> bool:
        """True while requests are handled in steps, or they or parts of this node wait for a batch: `step` has work,
        and the next turn is wanted at once."""
        return bool(self.in_steps or self.behind_batch or self._calls_when_over)

    def go_on_later(self, connection: Connection, command: RemotingCommand, steps: Iterator[None]) -> None:
        """Keeps a request for its next step: a new one behind the others of its address, else before them.

        One that has just begun a batch is next of all: nobody else's messages are stored until that is over.
        """
        request = connection, command, steps
        before, self._batch = self._batch, self._leadership.batches.under_way
        begins_batch = self._batch is not None and self._batch is not before
        if begins_batch:
            self._batch_steps = steps
        # A batch has turns of its own: behind it the next one may begin at once, and so on, and what else its address
        # wants would wait for all of them.
        share = _BATCH if steps is self._batch_steps else connection.share
        if steps is self._stepped or begins_batch:
            self._in_turn.add_before(share, request, is_next=begins_batch)
        else:
            self._in_turn.add(share, request)

    def counted(
        self, connection: Connection, command: RemotingCommand, steps: Iterator[None]
    ) -> Iterator[None]:
        """The steps of a request that begins, which has a place until its end.

        Raises `OverloadedError` before anything is done where there is none, and what `steps` raise.
        """
        self._in_steps_budget.take(connection, command)
        try:
            yield from steps
        finally:
            self._in_steps_budget.free(connection, command)

    def wait_behind_batch(self, connection: Connection, command: RemotingCommand) -> None:
        """Keeps a request of which nothing was done until the batch that is under way is over; or refuses it."""
        try:
            self._budget.take(connection, command)
        except OverloadedError as error:
            refuse(connection, command, error)
            return
        self.behind_batch.append((connection, command, self._forwarding.place_of(command)))

    def leadership_lost(self) -> None:
        """Has turns ask the next leader for what waits behind a batch, in its places, as for all that waits for this
        one (`Leadership.untold`)."""
        self._leadership.untold.extend([partial(self._forward, *waiting) for waiting in self.behind_batch])
        self.behind_batch.clear()
        self._leadership.others_first = False

    def _forward(self, connection: Connection, command: RemotingCommand, place: int) -> None:
        self._budget.free(connection, command)
        self._forwarding.forward_late(connection, command, place)

    def step(self) -> None:
        """Does a step for the next address, and goes on with some that have waited for a batch, in their order; to be
        called in each turn while `has_more`."""
        if self.in_steps:
            request = self._in_turn.take()
            assert self._stepped is None, "one step at a time"
            # By it `go_on_later` tells a request that goes on from a new one.
            self._stepped = request[2]
            self._go_on(*request)
            self._stepped = None
        leadership, waiting = self._leadership, self.behind_batch
        # Not for those that go on here: they are the ones who came first.
        leadership.others_first = False
        leadership.batches.let_go_on()
        for _ in range(min(len(waiting), _RESUMED_IN_A_TURN)):
            # A batch is under way, still or again: one of those that went on may have begun it.
            if leadership.batches.under_way is not None:
                break
            connection, command, place = waiting.popleft()
            self._budget.free(connection, command)
            if self._is_connected(connection):
                self._forwarding.handle_in_place(connection, command, place)
        # What comes from here on in this turn waits behind those that are left.
        leadership.others_first = bool(waiting)
