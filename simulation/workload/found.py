"""A founder makes topics, consumer groups and their offsets until there is no room for more, and deletes them again.

In its worlds there is room for few (`Limits.topics` and those behind it). Several requests are under way at once, and
what they take counts before it is there: that there is never more than the limits say every run checks
(simulation/judges/limits.py).
"""

import re
from collections.abc import Sequence
from typing import Final

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, ClientError
from broker.client.message import MessageQueue, trace_key
from broker.client.transport.core import BUSY_CODES
from broker.client.transport.runtime import Runtime
from broker.offsets.commits import OffsetCommits
from broker.remoting.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
    TopicConfigTable,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_body, encode_body
from broker.replica.replica import Replica
from broker.requests.processing import OUTCOME_UNKNOWN
from broker.state.topic_rules import topic_config
from broker.topics.creation import Creations
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.machines.broker_host import BrokerHost
from simulation.workload.context import Context, Invariant

TOPICS: Final = tuple(f"plot{number}" for number in range(40))
GROUPS: Final = tuple(f"settlers{number}" for number in range(24))
SQUARE: Final = "square"
"""The topic in which its consumer groups have offsets."""
SQUARE_QUEUES: Final = 48

_LANES: Final = 3
_TOGETHER: Final = (1, 1, 2, 5, 12)
"""How many topics or groups one request makes, of which either all come into being or none."""
_FULL_S: Final = 0.5
_REST_S: Final = 2.0
_BETWEEN_S: Final = 0.05
_ROUND_S: Final = 3.0
"""A founder ends its round after so long, whatever it has come to."""
_REPORTING: Final = 3
"""How many consumer groups report their offsets at the same time, each in all queues."""

_NO_ROOM: Final = re.compile(
    r"nothing was changed: there are (\d+) (?:consumer )?(topics|groups), at most (\d+) are allowed \(limits\.max_\2\)"
)
MARKS_OF: Final = {
    "topics": "no room for a topic",
    "groups": "no room for a consumer group",
    "offsets": "no room for an offset",
}


class Rooms(Invariant):
    """Judges the founders' answers: room is refused only where there is too little, and at the end no node keeps any
    that was taken for a request."""

    def answered(self, kind: str, wanted: int, answer: RemotingCommand) -> bool:
        """Judges the answer to a request that makes so many topics or groups; returns False if there is no room.

        Raises Violation.
        """
        if answer.code == ResponseCode.SUCCESS:
            self.context.journal.did(f"{kind} founded", wanted)
            return True
        if answer.code in BUSY_CODES or answer.remark == OUTCOME_UNKNOWN:
            return True
        found = _NO_ROOM.fullmatch(answer.remark or "")
        if found is None or found[2] != kind or answer.code != ResponseCode.SYSTEM_ERROR:
            raise Violation("founders are told what is so", "founder", f"{answer.code}: {answer.remark}")
        there, most = int(found[1]), int(found[3])
        if there + wanted <= most:
            raise Violation(
                "room is refused where there is none", "founder", f"{wanted} more: {answer.remark}"
            )
        self.context.journal.reached(MARKS_OF[kind])
        return False

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """At the end of a run: raises Violation if a node still counts something as under way that is not."""
        assert host.process is not None, "all nodes run at the end"
        node, log = host.process.node, replica.store.log
        if replica.applied_index != log.last_index:
            return  # something is under way
        commits = node.part(OffsetCommits)
        taken = {**node.part(Creations).taken(), "offsets": commits.new_under_way}
        if commits.staged:
            del taken["groups"]  # those of what is staged have theirs
        if any(taken.values()):
            raise Violation("room is freed", host.name, f"nothing is under way, and of {taken} is kept")


async def found(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Fills the room that there is, and makes it again, until the faults end. Raises Violation."""
    async with AdminClient(context.name_servers, runtime=runtime) as admin:
        founder = _Founder(context, runtime, admin)
        while not context.is_calm():
            with runtime.move_on_after(_ROUND_S):
                await founder.fill()
            await founder.leave()
            await runtime.sleep(runtime.random.expovariate(1 / _REST_S))
        await founder.leave()
        await runtime.sleep(3600.0)


class _Founder:
    """The work of one process."""

    def __init__(self, context: Context, runtime: Runtime, admin: AdminClient) -> None:
        self._context = context
        self._runtime = runtime
        self._admin = admin
        self._invariant = context.invariant(Rooms)
        self._may_have = set(GROUPS)
        """The consumer groups that are or may be there; a process that starts knows nothing of the one before."""

    async def fill(self) -> None:
        """Makes topics and groups until there is no room for even one: where there is none for many, fewer at once."""
        random = self._runtime.random
        await self._report()
        for kind, names in (("topics", TOPICS), ("groups", GROUPS)):
            most = max(_TOGETHER)
            while most:
                wanted = [random.sample(names, min(most, random.choice(_TOGETHER))) for _ in range(_LANES)]
                most = min([most, *await self._make(kind, wanted)])
                await self._runtime.sleep(random.expovariate(1 / _BETWEEN_S))
        await self._report()
        await self._runtime.sleep(random.expovariate(1 / _FULL_S))

    async def _make(self, kind: str, wanted: Sequence[Sequence[str]]) -> list[int]:
        """Makes requests for all of these at the same time. Returns, for each that finds no room, the request for one
        less."""
        refused: list[int] = []

        async def make(address: str, names: Sequence[str]) -> None:
            # Before they are asked for: whatever becomes of the request, they may be there then.
            if kind == "groups":
                self._may_have.update(names)
            try:
                answer = await self._admin.call(address, *_order(kind, names))
            except ClientError:
                return
            if not self._invariant.answered(kind, len(names), answer):
                refused.append(len(names) - 1)

        try:
            address = self._runtime.random.choice(await self._admin.addresses())
        except ClientError:
            return refused
        async with self._runtime.task_group() as requests:
            for names in wanted:
                requests.start_soon(make, address, names)
        return refused

    async def _report(self) -> None:
        """Reports offsets of groups in many queues, one way; some of the groups do not exist."""
        random, context = self._runtime.random, self._context
        body = encode_body(TopicConfigList([topic_config(SQUARE, SQUARE_QUEUES)]))
        try:
            self._invariant.answered(
                "topics", 1, await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            )
            connection = await self._admin.core.pool.get(random.choice(await self._admin.addresses()))
            for group in random.sample(GROUPS, _REPORTING):
                self._may_have.add(group)
                for queue_id in range(SQUARE_QUEUES):
                    queue = MessageQueue(SQUARE, context.groups[0], queue_id)
                    asked = context.judge.asked("founder", trace_key(queue), group, (), 0)
                    # As above: each of these may be stored, and no answer says so.
                    context.judge.asked_to_store(asked)
                    fields = {
                        "topic": SQUARE,
                        "queueId": str(queue_id),
                        "consumerGroup": group,
                        "commitOffset": "0",
                    }
                    connection.send_one_way(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            # The last one once more, with an answer, which comes behind all the others and tells whether there was
            # room.
            answer = await connection.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        except ClientError:
            return
        if "limits.max_stored_offsets" in (answer.remark or ""):
            context.journal.reached(MARKS_OF["offsets"])

    async def leave(self) -> None:
        """Deletes all of it."""
        while True:
            try:
                answer = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, {})
                if answer.code != ResponseCode.SUCCESS:
                    raise BrokerError(answer.code, answer.remark or "", "a broker")
                table = decode_body(answer.body, TopicConfigTable)
                for topic in (*TOPICS, SQUARE):
                    if topic in table.topic_config_table:
                        await self._delete(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
                # The list of consumer groups lacks those that are known by their offsets alone.
                for group in sorted(self._may_have):
                    fields = {"groupName": group, "removeOffset": "true"}
                    await self._delete(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
                    self._may_have.discard(group)
            except ClientError:
                await self._runtime.sleep(0.2)
            else:
                return

    async def _delete(self, code: int, fields: dict[str, str]) -> None:
        """Raises ClientError as long as it is not known to be done."""
        while (await self._ask(code, fields)).code != ResponseCode.SUCCESS:
            await self._runtime.sleep(0.1)

    async def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Raises ClientError."""
        address = self._runtime.random.choice(await self._admin.addresses())
        return await self._admin.call(address, code, fields, body)


def _order(kind: str, names: Sequence[str]) -> tuple[int, dict[str, str], bytes]:
    if kind == "topics":
        topics = TopicConfigList([topic_config(name, 1) for name in names])
        return RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, encode_body(topics)
    groups = SubscriptionGroupList([SubscriptionGroupConfig(group_name=name) for name in names])
    return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, encode_body(groups)
