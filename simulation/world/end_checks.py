"""The checks at the end of a run: everything has come together, and was read, and clients were told what is true."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.workload.names import TOPIC
from simulation.world.building import World
from simulation.world.group import WorldGroup

_GROUP: Final = "group"
"""The name of a trace."""

JudgeHistory = Callable[[Mapping[str, bytes]], str]
"""A checker that this room may not import: from clients' traces by name to what is wrong, "" for nothing."""


def is_applied(world: World) -> bool:
    """True if every node has applied all that is committed."""
    return all(
        host.process is not None and host.process.replica.applied_index == group.model.last_index
        for group in world.groups
        for host in group.members_at_end()
    )


def is_read(world: World) -> bool:
    """True if no reader has yet to come to something."""
    try:
        for invariant in world.invariants:
            if invariant.asks_readers:
                invariant.check_end()
    except Violation:
        return False
    return not any(_unread(world))


def has_come_together(world: World) -> bool:
    """True if all nodes have applied and readers got everything, and nothing is amiss with nodes and actors.

    What is looked at most cheaply comes first, and nodes' whole files last: a run may come here twice a second.
    """
    if not is_applied(world) or any(_unread(world)):
        return False
    try:
        check_actors(world)  # readers' among them
        check_nodes(world)
    except Violation:
        return False
    return True


def check_nodes(world: World) -> None:
    """Raises Violation for the first thing that is amiss with a node."""
    for group in world.groups:
        _check_nodes(world, group)


def check_read(world: World) -> None:
    """Raises Violation if something was never read."""
    for problem in _unread(world):
        raise Violation("liveness", "consumers", problem)


def check_actors(world: World) -> None:
    """Raises Violation for the first thing that actors were promised and that does not hold."""
    for invariant in world.invariants:
        invariant.check_end()


def check_told(world: World, judge_history: JudgeHistory | None) -> None:
    """Raises Violation for the first thing that clients were told and that is not true."""
    _note_forgotten_offsets(world)
    world.judges.check_outcomes()
    if judge_history is not None:
        world.traces.flush()
        problem = judge_history(world.traces.kept_histories())
        if problem:
            raise Violation("linearizability", "clients", problem)


def _note_forgotten_offsets(world: World) -> None:
    """Writes the trace of who takes offsets back that nobody uses, which is no client: the group itself.

    A consumer group without an offset and one at 0 are the same to the checker. Each node does it when it applies the
    command: some time behind the moment that the model knows.
    """
    forgotten = [
        (time_ns, f"{topic}/{group.name}:{queue_id}", consumers)
        for group in world.groups
        for (consumers, topic, queue_id), history in group.model.offsets.items()
        for time_ns, offset in history
        if offset is None and topic not in group.model.deleted_topics
    ]
    if forgotten:
        world.traces.histories.append(_GROUP)
        writer = TraceWriter(world.traces.sink(_GROUP), world.traces.header("client", _GROUP))
        for time_ns, key, consumers in sorted(forgotten):
            writer.info(time_ns, writer.invoke_commit_offset(time_ns, _GROUP, key, consumers, 0))
        writer.flush()


def _check_nodes(world: World, group: WorldGroup) -> None:
    """Checks that every node runs and has applied everything, and that its files say the same as the log."""
    model, hosts = group.model, group.members_at_end()
    # An operator who added a node may have been interrupted before it was set up; what it reads nobody knows.
    all_run = {host.name for host in hosts} >= {*model.voters, *model.learners}
    for host in hosts:
        process = host.process
        if process is None:
            raise Violation("liveness", host.name, "it does not run at the end")
        applied = process.replica.applied_index
        if applied != model.last_index:
            raise Violation("liveness", host.name, f"applied {applied} of {model.last_index} at the end")
        newest = process.replica.release.newest_format
        if all_run and process.replica.metadata.format != newest:
            raise Violation("liveness", host.name, f"all members read format {newest}, which is not in force")
        if host.was_damaged:
            others = [
                other.process.node for other in group.members_at_end() if other is not host and other.process
            ]
            group.monitor.check_repaired(host, process.node, others)
        group.monitor.check_store(host, process.node)
        if group.number == 0:
            for invariant in world.invariants:
                invariant.check_node(host, process.replica)
        # Behind those who say what a wrong number does: this one says that it is wrong.
        group.monitor.check_derived(host, process.node)


def _unread(world: World) -> Iterator[str]:
    """Tells of messages that are still there and that consumers' applications have not got."""
    if "consumer" not in world.plan.actors:
        return
    for group in world.groups:
        model = group.model
        for (topic, queue_id), queue in model.queues.items():
            if topic != TOPIC:
                continue
            consumed = world.context.consumed_offsets.get((group.name, queue_id), ())
            # What some node has deleted nobody need have read.
            begin = queue.first_kept(0, len(queue.keys), model.kept_from)
            missing = [offset for offset in range(begin, len(queue.keys)) if offset not in consumed]
            if missing:
                place = f"{topic}/{queue_id} of {group.name}"
                yield f"{place}: {len(missing)} of {len(queue.keys)} never read, {missing[0]} first"
