"""A request on its way: an entry in its connection's table, which is told how it ended.

A `Call` costs no task, no scope and no event. Whoever begins one says in `finish` what is to happen when it ends: a
`PendingCall` wakes the task that waits for it; a send notes where its message is stored, and begins the next one.
"""

from broker.client.errors import ConnectionFailed
from broker.client.transport.runtime import Event
from broker.remoting.command import RemotingCommand


class Call:
    """A request that a connection has in its table, by its opaque.

    Its times, when it was begun and when it is due, are set by whoever begins it, the others by the connection.
    """

    __slots__ = ("deadline_ns", "opaque", "start_byte", "started_ns")

    opaque: int
    started_ns: int
    deadline_ns: int
    start_byte: int
    """The number of bytes that calls had queued on the connection before this one."""

    def finish(self, response: RemotingCommand | None, error: ConnectionFailed | None) -> None:
        """Take the response, or the error that there is instead. The connection calls it, once, outside of its table.

        It runs in the connection's own tasks: it must not wait, nor raise.
        """
        raise NotImplementedError


class PendingCall(Call):
    """A call that tasks wait for. Whoever starts one must `wait` for its response or `abandon` it."""

    __slots__ = ("_calls", "_event", "error", "response")

    def __init__(self, calls: dict[int, Call], event: Event, started_ns: int, deadline_ns: int) -> None:
        self.started_ns = started_ns
        self.deadline_ns = deadline_ns
        self.response: RemotingCommand | None = None
        self.error: ConnectionFailed | None = None
        self._calls = calls
        self._event = event

    async def wait(self) -> RemotingCommand:
        """Return the response, whatever its code.

        Raises CallTimeout or ConnectionLost; `request_left` says whether the peer may have acted.
        """
        try:
            await self._event.wait()
        except BaseException:
            self.abandon()
            raise
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response

    async def arrived(self) -> None:
        """Wait until there is a response or an error; the call goes on if this wait is cancelled."""
        await self._event.wait()

    def abandon(self) -> None:
        """Leave the table of calls, as nobody wants the response any more."""
        self._calls.pop(self.opaque, None)

    def finish(self, response: RemotingCommand | None, error: ConnectionFailed | None) -> None:
        """Wake the waiters."""
        self.response = response
        self.error = error
        self._event.set()
