"""Sends under way at the same time, at most so many, without a task for each.

What ends a send begins the next one that waits, within the turn of the connection that read the response, and all that
begins in such a turn is written together. Only a send that has something to wait for, a route, a connection, or a
pause before it is repeated, gets a task until it is over.
"""

from collections import deque
from collections.abc import Callable

from broker.client.checks import check_whole
from broker.client.errors import ClientError, NotDelivered, UsageError
from broker.client.message import SendResult
from broker.client.producing.one_send import OneSend
from broker.client.transport.runtime import Event, Runtime, TaskGroup

Over = Callable[[OneSend, SendResult | None, ClientError | None], None]
"""Is told of each send that is over: where its message is, or why that is not known. It must not raise."""


class Window:
    """At most ``in_flight`` sends under way, and as many as ``waiting_max`` that wait for their turn.

    Raises UsageError where one of the two is below 1.
    """

    def __init__(
        self, runtime: Runtime, tasks: TaskGroup, in_flight: int, waiting_max: int, over: Over
    ) -> None:
        check_whole(1, in_flight=in_flight, waiting_max=waiting_max)
        self._runtime = runtime
        self._tasks = tasks
        self._in_flight = in_flight
        self._waiting_max = waiting_max
        self._tell_over = over
        self._under_way: dict[OneSend, None] = {}
        self._waiting: deque[OneSend] = deque()
        self._room: Event | None = None
        self._idle: Event | None = None
        self.is_closed = False

    @property
    def is_full(self) -> bool:
        """Tell whether no more sends are to be `put`."""
        return len(self._waiting) >= self._waiting_max

    @property
    def waiting(self) -> int:
        """The number of sends that wait for their turn."""
        return len(self._waiting)

    def put(self, send: OneSend) -> None:
        """Begin a send, now or when it is its turn; it was made with `ended` to tell of its end."""
        assert not self.is_closed, "a window takes nothing when it is closed"
        if len(self._under_way) < self._in_flight:
            self._begin(send)
        else:
            self._waiting.append(send)

    def ended(self, send: OneSend) -> None:
        """Take a send whose first attempt has ended."""
        if send.results is not None:
            self._end(send, send.results[0], None)
        else:
            self._tasks.start_soon(self._go_on, send)

    async def wait_room(self) -> None:
        """Wait until it is not full, or closed."""
        while self.is_full and not self.is_closed:
            if self._room is None:
                self._room = self._runtime.event()
            await self._room.wait()

    async def wait_idle(self) -> None:
        """Wait until all sends that were put are over."""
        while self._under_way or self._waiting:
            if self._idle is None:
                self._idle = self._runtime.event()
            await self._idle.wait()

    def close(self) -> None:
        """Begin nothing more, and give up what is not over."""
        self.is_closed = True
        under_way, self._under_way = self._under_way, {}
        waiting, self._waiting = self._waiting, deque()
        for send in under_way:
            self._tell_over(send, None, send.give_up())
        for send in waiting:
            self._tell_over(send, None, NotDelivered(send.message.topic, 0, None))
        for event in (self._room, self._idle):
            if event is not None:
                event.set()

    def _begin(self, send: OneSend) -> None:
        self._under_way[send] = None
        try:
            is_begun = send.start()
        except UsageError:
            is_begun = False  # which its task is told again
        # One that has begun and failed at once was handed to `ended` already.
        if not is_begun:
            self._tasks.start_soon(self._go_on, send)

    async def _go_on(self, send: OneSend) -> None:
        try:
            (result,) = await send.run()
        except ClientError as error:
            self._end(send, None, error)
        else:
            self._end(send, result, None)

    def _end(self, send: OneSend, result: SendResult | None, error: ClientError | None) -> None:
        # It was told of when the window was closed.
        if self.is_closed:
            return
        del self._under_way[send]
        self._tell_over(send, result, error)
        waiting = self._waiting
        if waiting:
            self._begin(waiting.popleft())
            if self._room is not None and len(waiting) < self._waiting_max:
                self._room.set()
                self._room = None
        elif self._idle is not None and not self._under_way:
            self._idle.set()
            self._idle = None
