"""The report of what a migration found, took and left: for people as tables, for scripts as JSON."""

import msgspec

from broker.migration.state_found import FoundState
from broker.migration.survey import Survey
from broker.state.topic_rules import SCHEDULE_TOPIC


class TopicReport(msgspec.Struct, kw_only=True):
    """One topic that is taken."""

    topic: str
    queues: int
    messages: int
    """In the log; those that retention has deleted are not counted."""
    next_offset: int
    """The sum of its queues' ends: how many messages it ever had."""
    consumer_groups: int
    """Consumer groups with offsets in it."""


class Origin(msgspec.Struct, kw_only=True):
    """The source of a report's messages, and the directory that has them now. `is_complete` is false for a check alone,
    and for a copy of what still takes messages."""

    source: str
    """A store's directory, or the address of a broker that runs."""
    node: str
    """The node of DLedger, or the broker's name."""
    is_store: bool
    directory: str
    is_complete: bool
    first_index: int
    last_index: int
    last_term: int
    """DLedger's last term; the group's is one higher, since Raft counts terms from 1. 0 for a broker that ran."""
    committed_index: int
    """By the source's checkpoint, which may be seconds older than the log; of a broker that runs the last one."""
    data_file_bytes: int
    """`storage.data_file_bytes` of the group that this becomes."""
    entries_copied: int
    """By this run."""


class Report(Origin, kw_only=True):
    """The whole of it."""

    messages: int
    """Messages that a queue has."""
    topics: list[TopicReport]
    consumer_groups: int
    positions: int
    delayed_waiting: int
    timed_waiting: int
    half_open: int
    brokers_own: int
    """Topics and consumer groups that every broker makes by itself, and that are not taken."""
    units_compared: int
    """Units of the source's ConsumeQueues that lead to the message that they should."""
    records_without_queue: int
    """Records that no queue has: rolled back, prepared, of deleted topics, left out, or with an offset once more."""
    not_taken: list[str]
    """Sentences for whoever decides whether this is well."""


def report_of(survey: Survey, state: FoundState, origin: Origin, remarks: list[str]) -> Report:
    """Returns what there is to say of a source that was surveyed; `remarks` is what its kind of source adds."""
    metadata = state.metadata
    topics = [
        TopicReport(
            topic=name,
            queues=max(config.read_queue_nums, config.write_queue_nums),
            messages=sum(queue.messages for key, queue in survey.found.items() if key[0] == name),
            next_offset=sum(end for key, end in state.ends.items() if key[0] == name),
            consumer_groups=sum(topic == name for _, topic in metadata.offsets),
        )
        for name, config in sorted(metadata.topics.items())
    ]
    # The schedule topic has a queue for each delay level, which are counted from 1 (`ScheduleMessageService`).
    delayed = [
        (queue, metadata.delays[queue_id + 1].offset)
        for (topic, queue_id), queue in survey.found.items()
        if topic == SCHEDULE_TOPIC
    ]
    queued = sum(queue.messages for queue in survey.found.values())
    timed = survey.timed_waiting()
    return Report(
        **msgspec.structs.asdict(origin),
        messages=queued,
        topics=topics,
        consumer_groups=len(metadata.groups),
        positions=metadata.offsets.count,
        delayed_waiting=sum(queue.next_offset - max(queue.first_offset, at) for queue, at in delayed),
        timed_waiting=timed.messages,
        half_open=len(metadata.transactions.times_checked),
        brokers_own=state.brokers_own,
        units_compared=sum(queue.compared for queue in survey.found.values()),
        records_without_queue=survey.entries - queued,  # each entry of the log is one record
        not_taken=state.notes + remarks + _counted(survey),
    )


def _counted(survey: Survey) -> list[str]:
    """Returns a sentence for each way in which messages do not arrive as they were."""
    timed = survey.timed_waiting()
    counts = (
        (survey.dead, "messages of topics that were deleted or left out: in the log, in no queue"),
        (
            len(survey.repeated),
            "records whose offset their queue had already: in the log, in no queue, as with RocketMQ",
        ),
        (survey.unstorable, "messages whose topic cannot name a directory: in the log, in no queue"),
        (timed.again, "timed messages that the timer wheel has stored once more: they are delivered twice"),
        (timed.cancels, "orders to cancel a timed message: delivered like messages, and cancel nothing"),
    )
    return [f"{count:,} {what}" for count, what in counts if count]
