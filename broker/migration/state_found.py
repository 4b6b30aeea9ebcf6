"""The replicated state of the group that a source becomes: its tables, as far as Trivet has the like."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.migration.errors import MigrationError
from broker.migration.survey import QueueKey, Survey
from broker.remoting.bodies import TopicConfig, check_retry_policy
from broker.state.commands import CommitOffsets, PutGroup, PutTopic
from broker.state.metadata import DelayProgress, Metadata
from broker.state.timer_progress import TimerProgress
from broker.state.topic_rules import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    HALF_OPERATIONS_TOPIC,
    HALF_TOPIC,
    INTERNAL_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    InvalidNameError,
    check_group_name,
    check_topic_name,
    is_system_group,
    topic_config,
)
from broker.topics.topics_processor import QUEUES_MAX, RETRIES_MAX
from log.queues.timer_index import Step

_BROKERS_OWN: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        HALF_OPERATIONS_TOPIC,
        "DefaultHeartBeatSyncerTopic",
    }
)
"""Topics that each of RocketMQ's brokers makes by itself: Trivet makes those that it needs.

Not all of what `is_system_topic` names: what is left out here is not taken, and what clients wrote must be.
"""
_OWN_PREFIX: Final = "rmq_sys_"
_OFFSETS_NAMED: Final = 5
_NO_TIME: Final = 0
"""A table's version is a time and a count of changes, by which brokers of one name are told apart. The time does not
matter here."""


@dataclass(slots=True)
class FoundState:
    """The state, and what of the source's is not in it, a sentence each."""

    metadata: Metadata
    ends: dict[QueueKey, int]
    notes: list[str] = field(default_factory=list)
    brokers_own: int = 0
    """Topics and consumer groups that each broker makes by itself."""


def state_of(survey: Survey, group: str, cluster: str) -> FoundState:
    """Returns the state behind the last entry. Raises MigrationError, DamagedSourceError, OSError."""
    found = FoundState(Metadata(), survey.ends())
    _add_topics(found, survey, lambda name: is_brokers_own(name, group, cluster))
    _add_groups(found, survey)
    _add_positions(found, survey)
    _add_delays(found, survey)
    found.metadata.transactions = survey.halves.state()
    timers = survey.config.timers
    if timers is not None and timers.queue_offset:
        # What was due before the wheel's time is delivered, of what the wheel had taken by then.
        step = Step(timers.read_ms - 1, timers.queue_offset - 1, timers.queue_offset)
        found.metadata.timers = TimerProgress(steps=(step,))
    return found


def is_brokers_own(topic: str, group: str, cluster: str) -> bool:
    """Tells whether each broker of RocketMQ makes a topic by itself."""
    named_like_the_broker = (group, cluster, cluster + REPLY_SUFFIX)
    return topic in _BROKERS_OWN or topic in named_like_the_broker or topic.startswith(_OWN_PREFIX)


def _add_topics(found: FoundState, survey: Survey, is_own: Callable[[str], bool]) -> None:
    topics = found.metadata.topics
    for name, config in survey.config.topics.items():
        if name == INTERNAL_TOPIC:
            raise MigrationError(
                f"topics.json has {INTERNAL_TOPIC}: this is the store of a Trivet node (trivet backup)"
            )
        if is_own(name):
            found.brokers_own += 1
        elif name in survey.left_out:
            found.notes.append(f"topic {name}: left out, as --leave-out says")
        elif reason := refusal(name, config):
            found.notes.append(f"topic {name[:80]!r}: {reason}")
        else:
            found.metadata.apply(PutTopic(msgspec.structs.replace(config, topic_name=name), _NO_TIME))
    # RocketMQ replicates no tables: a node that does not lead copies them every ten seconds (`SlaveSynchronize`), so
    # that the log may have messages of topics that topics.json lacks.
    for name in sorted({topic for topic, _ in found.ends}):
        if name in topics or name in survey.config.topics or is_own(name):
            continue
        if not any(key[0] == name for key in survey.found):
            continue
        queues = 1 + max(queue_id for topic, queue_id in found.ends if topic == name)
        config = topic_config(name, queues)
        if reason := refusal(name, config):
            found.notes.append(f"topic {name[:80]!r}: {reason}")
            continue
        found.metadata.apply(PutTopic(config, _NO_TIME))
        found.notes.append(
            f"topic {name}: not in topics.json although it has messages (it was made after a node that does not lead "
            f"copied the table, or deleted by the leader); made with {queues} queues, delete it if it was"
        )


def refusal(name: str, config: TopicConfig) -> str:
    """Returns why a topic cannot be taken; empty if it can."""
    try:
        check_topic_name(name)
    except InvalidNameError as error:
        return str(error)
    if not (0 <= config.read_queue_nums <= QUEUES_MAX and 0 <= config.write_queue_nums <= QUEUES_MAX):
        return (
            f"{config.read_queue_nums} queues to read and {config.write_queue_nums} to write are impossible"
        )
    if config.attributes.get("queue.type", "") == "BatchCQ":
        return "its queues are of a kind (BatchCQ) that is not kept here"
    return ""


def _add_groups(found: FoundState, survey: Survey) -> None:
    for name, config in survey.config.groups.items():
        if is_system_group(name):
            found.brokers_own += 1
            continue
        try:
            check_group_name(name)
        except InvalidNameError as error:
            found.notes.append(f"consumer group {name[:80]!r}: {error}")
            continue
        if not 0 <= config.retry_queue_nums <= QUEUES_MAX or config.retry_max_times > RETRIES_MAX:
            found.notes.append(
                f"consumer group {name}: {config.retry_queue_nums} retry queues and {config.retry_max_times} retries "
                "are impossible"
            )
            continue
        try:
            check_retry_policy(config)
        except msgspec.ValidationError as error:
            found.notes.append(f"consumer group {name}: groupRetryPolicy: {error}")
            continue
        found.metadata.apply(PutGroup(msgspec.structs.replace(config, group_name=name), _NO_TIME))


def _add_positions(found: FoundState, survey: Survey) -> None:
    metadata = found.metadata
    beyond: list[str] = []
    taken: list[tuple[str, str, int, int]] = []
    for (group, topic), queues in survey.config.offsets.items():
        if is_system_group(group) or topic not in metadata.topics:
            continue
        for queue_id, offset in queues.items():
            end = found.ends.get((topic, queue_id), 0)
            if not 0 <= queue_id < QUEUES_MAX or offset < 0:
                found.notes.append(
                    f"consumer offset {offset} of {group} in queue {queue_id} of {topic}: it is impossible"
                )
                continue
            # A consumer that stands beyond the end would pass over what is stored next.
            if offset > end:
                beyond.append(f"{offset} of {group} in queue {queue_id} of {topic}, which ends at {end}")
                offset = end
            taken.append((group, topic, queue_id, offset))
    metadata.apply(CommitOffsets(tuple(taken), is_order=True))
    if beyond:
        more = f", and {len(beyond) - _OFFSETS_NAMED} more" if len(beyond) > _OFFSETS_NAMED else ""
        found.notes.append(
            f"{len(beyond)} consumer offsets beyond the end of their queue, set to it: "
            f"{'; '.join(beyond[:_OFFSETS_NAMED])}{more}"
        )


def _add_delays(found: FoundState, survey: Survey) -> None:
    for (topic, queue_id), queue in survey.found.items():
        if topic != SCHEDULE_TOPIC:
            continue
        level = queue_id + 1
        offset = survey.config.delays.get(level, 0)
        if not 0 <= offset <= queue.next_offset:
            found.notes.append(
                f"delay level {level}: {offset} of its messages are said to be delivered, and there are "
                f"{queue.next_offset}: none is delivered again"
            )
            offset = queue.next_offset
        found.metadata.delays[level] = DelayProgress(offset)
    for level, delay_ms in sorted(survey.delays_seen.items()):
        found.notes.append(
            f"delay level {level} was {delay_ms} ms: set broker.delay_levels to the broker's messageDelayLevel"
        )
