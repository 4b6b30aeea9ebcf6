"""Which topics are the brokers' own, for all who list topics."""

from __future__ import annotations

import pytest

from broker.state.topic_rules import (
    FORBIDDEN_TO_SEND,
    is_system_topic,
    system_topics,
)


@pytest.mark.parametrize("trace", [False, True])
def test_each_topic_that_a_broker_makes_by_itself_is_a_system_topic(trace: bool) -> None:
    names = {"C", "G"}
    made = [config.topic_name for config in system_topics("C", "G", 8, auto_create=True, trace=trace)]
    assert "TBW102" in made
    assert [topic for topic in made if not is_system_topic(topic, names)] == []


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_TO_SEND))
def test_no_topic_that_nobody_may_send_to_is_a_users(topic: str) -> None:
    assert is_system_topic(topic)


@pytest.mark.parametrize("topic", ["rmq_sys_SYNC_BROKER_MEMBER_G", "RMQ_SYS_TRANS_OP_HALF_TOPIC_2"])
def test_a_name_that_begins_like_rocketmqs_own_is_not_a_users(topic: str) -> None:
    assert is_system_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "C_REPLY", "orders_REPLY_TOPIC", "%RETRY%G", "%DLQ%G", "D"])
def test_what_users_and_their_consumer_groups_have_is_no_system_topic(topic: str) -> None:
    assert not is_system_topic(topic, {"C", "G"})
