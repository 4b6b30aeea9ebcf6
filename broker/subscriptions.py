"""Tag filters: which messages of a queue a consumer wants (behaviour.md 5.3).

The broker compares Java hashes of tags, as the ConsumeQueue holds nothing else; the client compares the tags
themselves and drops what only has the same hash.
"""

from functools import lru_cache

from broker.processing import RequestError
from broker.remoting.codes import ResponseCode
from log.java_hash import java_hash

TagFilter = frozenset[int] | None
"""The hashes of the wanted tags; None for all messages."""


@lru_cache(maxsize=4096)
def parse_tag_filter(expression: str) -> TagFilter:
    """``*`` or nothing for all, else tags separated by ``||``; raises `RequestError` 23 for no tag at all."""
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
