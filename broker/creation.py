"""Groups and topics that come into being by use (behaviour.md 3): the commands that create what is missing.

Only the leader proposes them, and they never replace what exists (`if_absent`): several clients may cause them at
once, and an administrator may come in between.
"""

from collections.abc import Iterable

from broker.commands import PutGroup, PutTopic, SingleCommand
from broker.metadata import Metadata
from broker.remoting.bodies import SubscriptionGroupConfig
from broker.topics import RETRY_PREFIX, is_system_group, system_groups, system_topics, topic_config


def missing_for_consumers(
    metadata: Metadata, groups: Iterable[str], auto_create: bool, wall_ms: int
) -> list[SingleCommand]:
    """What lets the groups consume: their configuration and their retry topic.

    A group that does not exist and may not be created by use is left alone: its pulls are answered with code 26.
    """
    commands: list[SingleCommand] = []
    for name in dict.fromkeys(groups):
        group = metadata.groups.get(name)
        if group is None:
            if not auto_create and not is_system_group(name):
                continue
            group = SubscriptionGroupConfig(group_name=name)
            commands.append(PutGroup(group, wall_ms, if_absent=True))
        retry_topic = RETRY_PREFIX + name
        if retry_topic not in metadata.topics and group.retry_queue_nums > 0:
            commands.append(
                PutTopic(topic_config(retry_topic, group.retry_queue_nums), wall_ms, if_absent=True)
            )
    return commands


def missing_of_the_broker(
    metadata: Metadata, *, cluster: str, broker: str, default_queues: int, auto_create: bool, wall_ms: int
) -> list[SingleCommand]:
    """Topics and groups that every broker has."""
    commands: list[SingleCommand] = [
        PutTopic(config, wall_ms, if_absent=True)
        for config in system_topics(cluster, broker, default_queues, auto_create)
        if config.topic_name not in metadata.topics
    ]
    commands += [
        PutGroup(config, wall_ms, if_absent=True)
        for config in system_groups()
        if config.group_name not in metadata.groups
    ]
    return commands
