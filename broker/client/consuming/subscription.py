"""The messages of a topic that a consumer wants: all, those with certain tags, or those that an SQL92 filter matches.

Brokers compare hashes of tags, which may collide; so the consumer looks at the tag itself again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker.client.checks import check_kind
from broker.client.errors import DamagedMessage, UsageError
from broker.client.message import MessageView
from broker.client.producing.outgoing import check_name
from broker.remoting.bodies import SubscriptionData
from broker.state.topic_rules import RETRY_PREFIX
from log.formats.java_hash import java_hash


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter over message properties, evaluated by the broker: ``SqlFilter("price > 10 AND region = 'eu'")``."""

    expression: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and the messages wanted of it; without ``tags`` that is every one. ``version`` is a wall time in ms."""

    topic: str
    expression: str
    expression_type: str
    tags: frozenset[str]
    version: int

    @classmethod
    def parse(cls, topic: str, wanted: str | SqlFilter, version: int) -> Subscription:
        """Return the subscription for ``*`` or an empty text (all), ``a || b`` (tags), or an `SqlFilter`.

        Raises UsageError.
        """
        check_kind(str | SqlFilter, subscription=wanted)
        if isinstance(wanted, SqlFilter):
            check_kind(str, expression=wanted.expression)
            if not wanted.expression.strip():  # which brokers take for *, and * is no condition
                raise UsageError(f"topic {topic!r}: an SqlFilter needs a condition")
            return cls(topic, wanted.expression, "SQL92", frozenset(), version)
        tags = [tag.strip() for tag in wanted.split("||") if tag.strip()]
        if not tags or tags == ["*"]:
            if wanted.strip() not in ("", "*"):
                raise UsageError(f"topic {topic!r}: subscription {wanted!r} names no tag")
            return cls(topic, "*", "TAG", frozenset(), version)
        if "*" in tags:
            raise UsageError(f"topic {topic!r}: subscription {wanted!r} mixes * with tags")
        return cls(topic, " || ".join(tags), "TAG", frozenset(tags), version)

    @property
    def takes_everything(self) -> bool:
        """Tell whether no message is left out."""
        return not self.tags and self.expression_type == "TAG"

    def accepts(self, message: MessageView) -> bool:
        """Compare the tag itself, after the broker has compared its hash.

        True for SQL filters, which the broker decides, for retry topics, which are never filtered, and for a message
        that cannot be read: who reads has to hear of it.
        """
        if not self.tags or self.topic.startswith(RETRY_PREFIX):
            return True
        try:
            return message.tags in self.tags
        except DamagedMessage:
            return True

    def data(self) -> SubscriptionData:
        """Return the subscription in the form of a heartbeat."""
        tags = sorted(self.tags)
        return SubscriptionData(
            code_set=[java_hash(tag) for tag in tags],
            expression_type=self.expression_type,
            sub_string=self.expression,
            sub_version=self.version,
            tags_set=tags,
            topic=self.topic,
        )


def subscriptions(
    topics: Mapping[str, str | SqlFilter] | Sequence[str] | str, version: int
) -> dict[str, Subscription]:
    """Return a subscription for each topic, of all its messages where it has no tags or filter.

    Raises UsageError, MessageRejected.
    """
    check_kind(Iterable, topics=topics)
    if isinstance(topics, str):
        topics = [topics]
    wanted: Mapping[str, str | SqlFilter]
    wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
    for topic in wanted:
        check_name("topic", topic)
    return {topic: Subscription.parse(topic, tags, version) for topic, tags in wanted.items()}
