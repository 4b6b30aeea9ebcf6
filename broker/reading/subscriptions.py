"""Filters: the messages of a queue that a consumer wants (RocketMQ's `ExpressionMessageFilter`).

Of tags the broker compares Java hashes, as the ConsumeQueue holds nothing else; the client compares the tags
themselves and drops what only has the same hash. SQL92 filters look at the records' properties, here alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from broker.remoting.codes import ResponseCode
from broker.requests.errors import RequestError
from log.formats.java_hash import java_hash

if TYPE_CHECKING:
    from broker.reading.sql92 import Predicate

TagFilter = frozenset[int] | None
"""The hashes of the wanted tags; None for all messages."""

TAG: Final = "TAG"
SQL92: Final = "SQL92"

TAGS_LENGTH_MAX: Final = 8192
"""Characters of a subscription by tags, as of one by SQL92."""

_REMEMBERED_LENGTH: Final = 256
"""Longer subscriptions are parsed each time: what is remembered of all clients' is bounded."""
SQL_WORK_MAX: Final = 200_000
"""The work (`SqlFilter.work`) after which a response looks at no more records: some 15 ms."""
_BYTES_AS_A_LOOK: Final = 512
"""Looking through so many bytes of properties takes about as long as all else in judging one record by one term."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An SQL92 filter whose condition has `length` characters."""

    matches: "Predicate"
    length: int

    def work(self, properties_bytes: int) -> int:
        """The work for a record with so many bytes of properties, in characters of a condition and short ones."""
        return self.length * (1 + properties_bytes // _BYTES_AS_A_LOOK)


Filter = TagFilter | SqlFilter


def is_by_sql(expression_type: str | None, *, sql_filters: bool) -> bool:
    """Tells whether a subscription is a condition. Raises `RequestError` 1 for a type unknown or switched off."""
    if expression_type in {None, "", TAG}:
        return False
    if expression_type != SQL92 or not sql_filters:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )
    return True


def parse_in_steps(expression_type: str | None, expression: str) -> Iterator[None]:
    """Reads a long condition in steps; `parse_filter` of it, called right behind the last one, takes no time then."""
    if expression_type == SQL92:
        from broker.reading.sql92 import compile_in_steps

        yield from compile_in_steps(expression)


def parse_filter(expression_type: str | None, expression: str, *, sql_filters: bool) -> Filter:
    """The filter of a subscription.

    Raises `RequestError`: 1 for a type that is unknown or switched off, 23 for an expression that cannot be used.
    """
    if not is_by_sql(expression_type, sql_filters=sql_filters):
        return parse_tag_filter(expression)
    # Here, as few consumer groups filter so: it takes a turn 5 ms once, and every start otherwise.
    from broker.reading.sql92 import compile_sql
    from broker.reading.sql92_words import SqlError

    try:
        matches = compile_sql(expression)
    except SqlError as error:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription {expression[:200]!r} is no SQL92 condition: {error}",
        ) from error
    return SqlFilter(matches, len(expression))


def parse_tag_filter(expression: str) -> TagFilter:
    """``*`` or nothing for all, else tags separated by ``||``; raises `RequestError` 23 for no tag at all."""
    if len(expression) > TAGS_LENGTH_MAX:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription has {len(expression)} characters, at most {TAGS_LENGTH_MAX} are allowed",
        )
    return (
        _parse_tags(expression)
        if len(expression) <= _REMEMBERED_LENGTH
        else _parse_tags.__wrapped__(expression)
    )


@lru_cache(maxsize=4096)
def _parse_tags(expression: str) -> TagFilter:
    expression = expression.strip()
    if expression in {"", "*"}:
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    wanted = frozenset(java_hash(tag) for tag in tags if tag)
    if not wanted:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription {expression[:200]!r} names no tag"
        )
    return wanted
