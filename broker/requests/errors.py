"""The reasons why a request is not carried out, as exceptions. None of these leaves anything of the request behind.

    RequestError         the client or the state is to blame: answered with the response code that it names
    ReplicaError         this replica does not take the request now
      NotServingError    it leads no group that serves: ask `leader`, or again shortly
      OverloadedError    too much waits already: ask again later
        BatchUnderWayError  a long batch is being stored: again when it is over

A full disk is `log.errors.DiskFullError`, bytes that are no request `broker.remoting.errors.RemotingError`.
"""


class RequestError(Exception):
    """A request that cannot be carried out; answered with its response code and the text as remark.

    Raised by handlers for what the client or the broker's state is to blame for; `code` is a
    `broker.remoting.codes.ResponseCode` and tells the client whether a retry may help.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class ReplicaError(Exception):
    """Base of the reasons why this replica does not take a request now; each leaves nothing behind in the log."""


class NotServingError(ReplicaError):
    """This node is not a leader that serves; `leader` is the node it follows, or None."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this node does not lead the group; the leader is {leader or 'unknown'}")
        self.leader = leader


class OverloadedError(ReplicaError):
    """Taking more would only make the queue longer."""


class BatchUnderWayError(OverloadedError):
    """A long batch is being stored, and nothing may come between its messages.

    A request that meets it waits in its node until that is over (`Node`).
    """


class TooManyError(Exception):
    """A limit, which the text names, leaves no room for what was to be created: something has to be deleted first."""
