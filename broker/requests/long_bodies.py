"""Long lists as JSON: written in steps, and kept in the pieces in which they were written.

A list of tens of thousands of topics takes tens of milliseconds to encode, and as long again to copy into one piece. So
a step writes some hundred members, and nothing puts the pieces together but the socket.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from broker.remoting.json_body import encode_body
from broker.remoting.pieces import Pieces
from broker.remoting.steps import finished

MEMBERS_AT_ONCE: Final = 1_000
"""Members of a list that one step writes: some 1 ms, and 8 where each has the longest settings."""

_Member = TypeVar("_Member")

Body = Generator[None, None, Pieces]
"""Does a step of the work up to each yield, and returns the body."""


def table(
    begin: bytes, members: Mapping[str, Any], is_seen: Callable[[str], bool], end: bytes = b"}}"
) -> Body:
    """Writes the members that may be seen, as they are now, into an object that `begin` opens and `end` closes."""

    def write(some: Sequence[tuple[str, Any]]) -> bytes:
        return encode_body({name: value for name, value in some if is_seen(name)})

    return listed(begin, dict(members).items(), write, end)


def listed(
    begin: bytes, members: Iterable[_Member], write: Callable[[Sequence[_Member]], bytes], end: bytes = b"]}"
) -> Body:
    """Writes members into a list or an object that `begin` opens and `end` closes.

    `write` returns some of them as a list or object of its own.
    """
    pieces, separator = Pieces(begin), b""
    left = iter(members)
    some = list(islice(left, MEMBERS_AT_ONCE))
    while some:
        written = write(some)
        # Between the brackets: none of its members may be one that the client may see.
        if len(written) > 2:
            pieces.write(separator, memoryview(written)[1:-1])
            separator = b","
        some = list(islice(left, MEMBERS_AT_ONCE))
        # Not behind the last ones: the next step would have nothing to do.
        if some:
            yield
    pieces.write(end)
    return pieces


def while_wanted(body: Body, is_wanted: Callable[[], bool]) -> Generator[None, None, Pieces | None]:
    """Does the steps of a body while it is wanted. Returns the body, or None once it is not wanted any more."""
    while True:
        try:
            next(body)
        except StopIteration as end:
            pieces: Pieces = end.value
            return pieces
        yield
        if not is_wanted():
            return None


def whole(body: Body) -> bytes:
    """Does all steps at once, and returns the body in one piece."""
    return b"".join(finished(body).all())
