"""A registration's topics as JSON, of which there may be 15 MB: looked through and read in steps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting import register_body
from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable
from broker.remoting.codes import Version
from broker.remoting.register_body import RegisterBrokerBody


@given(data=st.data())
def test_json_that_is_looked_through_in_parts_is_read_as_a_whole(data: st.DataObject) -> None:
    """Names and attributes have what looks like the end of a topic."""
    text = st.text(st.sampled_from('a},{":\\ "topicConfigTable":{'), max_size=12) | st.sampled_from(
        ['},"x":{', '"topicConfigTable":{']
    )
    topics = data.draw(
        st.dictionaries(
            text, st.builds(TopicConfig, topic_name=text, attributes=st.dictionaries(text, text, max_size=3))
        )
    )
    version = DataVersion(3, 2, 1)
    body = RegisterBrokerBody(filter_server_list=["f"], topics=TopicConfigTable(version, topics)).encode()
    expected = msgspec.json.decode(body, type=RegisterBrokerBody)
    for part_bytes in (1, 50, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(register_body, "_PART_BYTES", part_bytes)
            read = RegisterBrokerBody.decode(body, compressed=False, version=Version.V5_0_0)
        assert read.topics == expected.topics


def test_a_table_that_is_not_the_one_that_counts_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "_PART_BYTES", 1)
    other = b'{"topicConfigTable":{"X":{"topicName":"X"},"Y":{"topicName":"Y"},"Z":{"topicName":"Z"}}}'
    table = b'{"dataVersion":{},"topicConfigTable":{"T":{"topicName":"T"}}}'
    for body in (
        b'{"other":%b,"topicConfigSerializeWrapper":%b}' % (other, table),
        b'{"topicConfigSerializeWrapper":%b,"other":%b}' % (table, other),
    ):
        read = RegisterBrokerBody.decode(body, compressed=False, version=Version.V5_0_0)
        assert list(read.topics.topic_config_table) == ["T"]


def test_many_topics_as_json_are_read_in_small_steps() -> None:
    """They were looked through at once, 80,000 in 28 ms."""
    table = {
        f"topic-{number}": TopicConfig(topic_name=f"topic-{number}", attributes={"+message.type": "NORMAL"})
        for number in range(20_000)
    }
    body = RegisterBrokerBody(topics=TopicConfigTable(DataVersion(), table)).encode()
    read: list[int] = []
    original = register_body._decode_raw_topics

    def decode(part: bytes) -> dict[str, msgspec.Raw]:
        read.append(len(part))
        return original(part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(register_body, "_decode_raw_topics", decode)
        steps = RegisterBrokerBody.decode_in_steps(body, compressed=False, version=Version.V5_0_0)
        count = sum(1 for _ in steps)
    assert sum(read) > len(body) - 3 * register_body._PART_BYTES
    assert max(read) < register_body._PART_BYTES + 1000
    assert count >= len(read)
