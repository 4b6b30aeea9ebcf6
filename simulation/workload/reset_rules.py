"""The rules of consumer groups that an administrator sends elsewhere (request 222, broker/offsets/resets.py).

What the log says. Each order in it has a request of its own, and says what that asked for; an order of many queues may
come in parts. While one stands, what
members report moves nothing; it ends when a member that was told has pulled from there. So the offset of a consumer
group follows from the commands, and every node must have derived the same.

What members see. Each message follows the one before it, or the offset that the member was given: by the brokers when
it asked, or by an order, and from then on nothing else comes, and nothing else is reported. So what a consumer group's
offset passes has come to some member since the last order, but what retention took.

One thing an order cannot help. A report says nothing of which order its sender knew. One that left before its sender
heard of an order, and was on its way until others had followed, counts like any report: as with RocketMQ. Nothing but
such a report excuses an offset that passes what nobody read, and how often that happened is counted.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from broker.client.message import MessageView
from broker.client.transport.connection import Fields
from broker.client.transport.runtime import Buffer
from broker.offsets.resets import TOLD_MAX
from broker.remoting.codes import ResponseCode
from broker.replica.replica import Replica
from broker.state.commands import Command, CommitOffsets, EndResets, ForgetOffsets, ResetOffsets
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage, CommittedQueue, values_since
from simulation.judges.stored_offsets import NEVER
from simulation.machines.broker_host import BrokerHost
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.inquire import extent_of, is_found_by_time
from simulation.workload.watched_pool import Attempt

TOPIC: Final = "chapters"

_LOOKS_NS: Final = SECOND // 4
_SETTLED_AFTER_NS: Final = 5 * SECOND
"""An order that was given so long before the end of a run has been followed by then."""


@dataclass(slots=True, eq=False)
class ResetRequest:
    """An administrator asks for a reset. With an offset, one of one queue, that is where to go."""

    group: str
    since_ns: int
    timestamp_ms: int
    is_force: bool
    queue_id: int | None
    offset: int | None
    is_over: bool = False
    """Set when it is answered: nothing that it asked for can be done later."""
    is_done: bool = False
    """Set when an order is in the log that no other request accounts for."""
    queues: set[int] = field(default_factory=set)
    """The queues of that order, as far as it is in the log."""


@dataclass(slots=True)
class _Asking:
    """A member's pull from an offset, or its question for the stored offset; the answer to it may tell of an order."""

    offset: int | None
    since_ns: int
    until_ns: int = NEVER


@dataclass(slots=True)
class Report:
    """An offset that a member reports, which knew of the orders up to a time."""

    offset: int
    known_ns: int
    until_ns: int = NEVER


@dataclass(slots=True)
class _Place:
    """A consumer group in a queue, as the log tells of it."""

    offset: int | None = None
    parked: int | None = None
    orders: list[tuple[int, int]] = field(default_factory=list)
    """The orders: the true time of each commit, and the target."""
    read: set[int] = field(default_factory=set)
    """The offsets that some member got since the last order."""
    asking: list[_Asking] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    is_excused: bool = False
    """Set when a late report has counted since the last order, or that was forgotten."""

    @property
    def ordered_ns(self) -> int:
        return self.orders[-1][0] if self.orders else -1

    @property
    def begin(self) -> int:
        return self.orders[-1][1] if self.orders else 0

    def ordered(self, now_ns: int, target: int) -> None:
        self.offset = self.parked = target
        self.orders.append((now_ns, target))
        self.read.clear()
        self.is_excused = False
        # What was answered before cannot have told of this order, and a report that was taken before cannot undo it.
        self.asking = [asking for asking in self.asking if asking.until_ns >= now_ns]
        self.reports = [report for report in self.reports if report.until_ns >= now_ns]

    def forgotten(self) -> None:
        """The group knows nothing of it any more: an order that stood is forgotten, too, and need not be followed.

        Readers that pull for themselves are no members, so it may be forgotten while they stand still.
        """
        self.is_excused |= self.parked is not None
        self.offset = self.parked = None


@dataclass(slots=True)
class _Run:
    """A member's reading of a queue since it was given an offset."""

    begin: int
    known_ns: int
    reached: int
    """One past the last message that the member got, or the begin."""


class Resets(Invariant):
    """Each reset is followed, whatever fails: see the head of this module."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._places: dict[tuple[str, int], _Place] = {}
        self._requests: dict[str, list[ResetRequest]] = {}
        self._orders: list[tuple[int, str, dict[int, int], list[ResetRequest]]] = []
        """The orders: time of commit, consumer group, queue id -> target, and requests that may have asked for it."""
        self._comes_in_parts = context.facts.queues_per_command < context.facts.queues
        self._times: dict[int, list[int]] = {}
        """Queue id -> the time at which each message was stored."""
        context.scheduler.after(_LOOKS_NS, self._look)

    def place(self, group: str, queue_id: int) -> _Place:
        """Returns a consumer group in a queue."""
        return self._places.setdefault((group, queue_id), _Place())

    # ---- what administrators tell --------------------------------------------------------------------

    def times(self) -> list[int]:
        """Returns the times at which messages were stored, for resets by time."""
        return [time_ms for times in self._times.values() for time_ms in times]

    def end(self, queue_id: int) -> int:
        """Returns how many messages a queue has got."""
        return len(self._times.get(queue_id, ()))

    def asks(self, request: ResetRequest) -> None:
        """Notes a request that leaves; its outcome is unknown until it is `refused` or `acknowledged`."""
        self._requests.setdefault(request.group, []).append(request)

    def refused(self, request: ResetRequest, reason: str) -> None:
        """Judges a refusal: nothing was done, and nothing will be. Raises Violation."""
        request.is_over = True
        if request.is_done:
            raise self._violation("refused resets leave nothing", request, reason)

    def acknowledged(self, request: ResetRequest, targets: Mapping[int, int]) -> None:
        """Judges an acknowledgement: an order that sends the consumer group there is in the log. Raises Violation."""
        request.is_over = True
        self.context.journal.did("reset acknowledged")
        # Without force, queues in which the consumer group has no offset yet are left alone: then none may be named.
        if not targets:
            if any(self._stood_at(request, queue_id) for queue_id in self._queues_of(request)):
                raise self._violation(
                    "acknowledged resets are in the log", request, "the answer names no queue"
                )
            return
        missing = dict(targets)
        for committed_ns, group, items, candidates in self._orders:
            if (
                committed_ns >= request.since_ns
                and group == request.group
                and request in candidates
                and items.items() <= targets.items()
            ):
                for queue_id in items:
                    missing.pop(queue_id, None)
        if missing or self._lacks_queues(request, targets):
            raise self._violation("acknowledged resets are in the log", request, f"told {targets}")

    def _queues_of(self, request: ResetRequest) -> range:
        queue_id = request.queue_id
        return range(self.context.facts.queues) if queue_id is None else range(queue_id, queue_id + 1)

    def _stood_at(self, request: ResetRequest, queue_id: int) -> bool:
        """True if the consumer group had an offset in a queue when the request left, which was not forgotten since."""
        history = self.context.model.offsets.get((request.group, TOPIC, queue_id), [])
        return (
            bool(history)
            and history[0][0] < request.since_ns
            and None not in self._stood_since(request, queue_id)
        )

    # ---- what the group commits ----------------------------------------------------------------------

    def committed(self, message: CommittedMessage) -> None:
        """Notes the time of a message, which resets by time may name."""
        record = message.record
        if record.topic == TOPIC:
            self._times.setdefault(record.queue_id, []).append(record.store_timestamp)

    def applied(self, command: Command, now_ns: int) -> None:
        """Follows offsets, orders, and their ends."""
        match command:
            case CommitOffsets(offsets):
                for group, topic, queue_id, offset in offsets:
                    if topic == TOPIC:
                        self._reported(group, queue_id, offset, now_ns)
            case ResetOffsets(offsets):
                by_group: dict[str, dict[int, int]] = {}
                for group, topic, queue_id, offset in offsets:
                    if topic == TOPIC:
                        by_group.setdefault(group, {})[queue_id] = offset
                for group, targets in by_group.items():
                    self._ordered(group, targets, now_ns)
            case EndResets(offsets):
                for group, topic, queue_id, offset in offsets:
                    if topic == TOPIC:
                        self._ended(group, queue_id, offset, now_ns)
            case ForgetOffsets(offsets):
                for group, topic, queue_id, offset in offsets:
                    if topic == TOPIC and self.place(group, queue_id).offset == offset:
                        self.place(group, queue_id).forgotten()
            case _:
                pass

    def _reported(self, group: str, queue_id: int, offset: int, now_ns: int) -> None:
        """Judges a report in the log, which counts unless an order stands: it passes nothing that nobody got."""
        place = self.place(group, queue_id)
        if place.parked is not None:
            self.context.journal.did("report while a reset stood")
            return
        place.offset = offset
        skipped = self._first_unread(place, queue_id, offset)
        # One late report may take the consumer group past what nobody got; what follows it goes on from there.
        if skipped is None or place.is_excused:
            return
        if any(
            report.offset == offset and report.until_ns >= now_ns and report.known_ns < place.ordered_ns
            for report in place.reports
        ):
            place.is_excused = True
            self.context.journal.did("late report after a reset")
            return
        raise Violation(
            "offsets pass what was read, or reset",
            "group",
            f"{group} at {TOPIC}/{queue_id}: {offset} is stored, nobody got {skipped}; sent to {place.orders[-1:]}",
        )

    def _first_unread(self, place: _Place, queue_id: int, end: int) -> int | None:
        """Returns the first message between the last order's target and an offset that is kept and nobody got."""
        model = self.context.model
        queue = model.queues.get((TOPIC, queue_id), CommittedQueue())
        begin = queue.first_kept(place.begin, max(end, place.begin), model.kept_from)
        return next((offset for offset in range(begin, end) if offset not in place.read), None)

    def _ordered(self, group: str, targets: dict[int, int], now_ns: int) -> None:
        """Judges an order in the log: a request asked for it, and each request gives one at most."""
        asked = [request for request in self._requests.get(group, ()) if not request.is_over]
        candidates = [request for request in asked if self._may_order(request, targets)]
        if not candidates:
            detail = f"{group}: {targets}; asked for {asked}, stored {self._stored(group, targets)}"
            raise Violation("resets are ordered", "group", detail)
        # Several requests may ask for the same place. Which of them this order is of shows only where one is left.
        backwards = [request for request in candidates if self._keeps_its_way(request, targets)]
        if not backwards:
            detail = f"{group}: {targets}; asked for {candidates}, stored {self._stored(group, targets)}"
            raise Violation("without force backwards only", "group", detail)
        if len(backwards) == 1:
            (request,) = backwards
            if not request.queues.isdisjoint(targets) or (request.is_done and not self._comes_in_parts):
                raise self._violation("a reset is done once", request, f"again {targets}")
            request.is_done = True
            request.queues.update(targets)
        self._orders.append((now_ns, group, targets, backwards))
        for queue_id, target in targets.items():
            self.place(group, queue_id).ordered(now_ns, target)
            self.context.judge.ordered(group, TOPIC, queue_id, target)
        self.context.journal.did("reset ordered")

    def _stored(self, group: str, targets: Mapping[int, int]) -> dict[int, int | None]:
        return {queue_id: self.place(group, queue_id).offset for queue_id in targets}

    def _may_order(self, request: ResetRequest, targets: Mapping[int, int]) -> bool:
        """True if a request may have come to this order, or to this part of one, as to queues and places."""
        if not self._comes_in_parts and self._lacks_queues(request, targets):
            return False
        return all(
            queue_id in self._queues_of(request) and self._may_be_sent(request, queue_id, target)
            for queue_id, target in targets.items()
        )

    def _lacks_queues(self, request: ResetRequest, targets: Mapping[int, int]) -> bool:
        return any(
            queue_id not in targets and (request.is_force or self._stood_at(request, queue_id))
            for queue_id in self._queues_of(request)
        )

    def _may_be_sent(self, request: ResetRequest, queue_id: int, target: int) -> bool:
        if request.offset is not None:
            return target == request.offset
        if self._is_at_time(request, queue_id, target):
            return True
        # Without force a group stays where it is that has not come so far.
        end = self.end(queue_id)
        return (
            not request.is_force
            and target in self._stood_since(request, queue_id)
            and any(self._is_at_time(request, queue_id, offset) for offset in range(target, end + 1))
        )

    def _stood_since(self, request: ResetRequest, queue_id: int) -> list[int | None]:
        """Returns the offsets at which the consumer group has been since a request left."""
        history = self.context.model.offsets.get((request.group, TOPIC, queue_id), [])
        return values_since(history, request.since_ns)

    def _is_at_time(self, request: ResetRequest, queue_id: int, offset: int) -> bool:
        extent = extent_of(self.context.model, TOPIC, queue_id, request.since_ns)
        if request.timestamp_ms < 0:
            return extent.may_end_at(offset)
        times = self._times.get(queue_id, [])
        return is_found_by_time(times, extent, request.timestamp_ms, "lower", offset)

    def _keeps_its_way(self, request: ResetRequest, targets: Mapping[int, int]) -> bool:
        """True unless a reset without force leads forwards. A reset to a named offset may lead either way."""
        return (
            request.is_force
            or request.offset is not None
            or all(
                # What was forgotten since the request left may have been there when it was judged.
                any(
                    stood is not None and targets[queue_id] <= stood
                    for stood in ([offset] if offset is not None else self._stood_since(request, queue_id))
                )
                for queue_id, offset in self._stored(request.group, targets).items()
            )
        )

    def _ended(self, group: str, queue_id: int, offset: int, now_ns: int) -> None:
        """Judges the end of an order: a member was told of it by an answer, and has pulled from there."""
        place = self.place(group, queue_id)
        # A newer order leads elsewhere, and goes on.
        if place.parked != offset:
            return
        place.parked = None
        heard = [asking for asking in place.asking if asking.until_ns >= place.ordered_ns]
        # By one of these the member was told of the order, and by another it went there.
        has_followed = any(asking.offset == offset for asking in heard) and len(heard) > 1
        if not has_followed and sum(asking.offset is not None for asking in heard) <= TOLD_MAX:
            raise Violation(
                "orders end when they are followed",
                "group",
                f"{group} at {TOPIC}/{queue_id}: sent to {offset}, since then asked {heard}",
            )
        self.context.journal.did("reset followed")

    # ---- nodes ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Checks that all nodes that have applied everything know the same."""
        for host in self.context.members.machines:
            process = host.process
            if process and process.replica.applied_index == self.context.model.last_index:
                self.check_node(host, process.replica)
        self.context.scheduler.after(_LOOKS_NS, self._look)

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that the node knows the same of each consumer group. Raises Violation."""
        metadata = replica.metadata
        for (group, queue_id), place in self._places.items():
            stored = metadata.offsets.get((group, TOPIC), {}).get(queue_id)
            parked = metadata.parked.get(group, TOPIC, queue_id)
            if (stored, parked) != (place.offset, place.parked):
                raise Violation(
                    "offsets and orders are known",
                    host.name,
                    f"{group} at {TOPIC}/{queue_id}: at {stored}, to go to {parked}; by the log "
                    f"{place.offset} and {place.parked}",
                )

    # ---- at the end ----------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Checks that orders have been followed, and everything from there on was read. Raises Violation."""
        long_ago_ns = self.context.scheduler.now_ns - _SETTLED_AFTER_NS
        for (group, queue_id), place in self._places.items():
            if place.ordered_ns > long_ago_ns:
                continue
            if place.parked is not None:
                detail = f"{group} at {TOPIC}/{queue_id}: sent to {place.parked}, and has not gone"
                raise Violation("orders are followed", "group", detail)
            end = self.end(queue_id)
            unread = self._first_unread(place, queue_id, end)
            if unread is not None and not place.is_excused:
                detail = (
                    f"{group} at {TOPIC}/{queue_id}: nobody got {unread} of {end}; sent to {place.orders}"
                )
                raise Violation("liveness", "group", detail)

    def _violation(self, invariant: str, request: ResetRequest, detail: str) -> Violation:
        violation = Violation(invariant, "administrators", f"{request}: {detail}")
        self.context.journal.found(violation)  # at once: the administrator's tasks take a while to end
        return violation


class Member:
    """A process that reads for a consumer group, and what it was told."""

    def __init__(self, rules: Resets, group: str, name: str) -> None:
        self._rules = rules
        self._context = rules.context
        self.group = group
        self._name = name
        self._runs: dict[int, _Run] = {}

    def _now_ns(self) -> int:
        return self._context.scheduler.now_ns

    def begins(self, queue_id: int, offset: int, known_ns: int) -> None:
        """Judges where a member begins: brokers have said that the consumer group stands there, or the queue begins
        there."""
        self._runs[queue_id] = _Run(offset, known_ns, offset)

    def sent(self, queue_id: int, offset: int) -> None:
        """Notes that a member has heard of an order. Raises Violation."""
        orders = self._rules.place(self.group, queue_id).orders
        # An answer names the place and not the order: of several with one target the newest stands.
        known_ns = next((time_ns for time_ns, target in reversed(orders) if target == offset), None)
        if known_ns is None:
            raise self._violation("resets are ordered", queue_id, f"sent to {offset}; orders were {orders}")
        self._runs[queue_id] = _Run(offset, known_ns, offset)
        self._context.journal.did("member sent elsewhere")

    def got(self, message: MessageView) -> None:
        """Judges a message: it is the one behind the last one, or at the begin. Raises Violation."""
        queue_id, offset = message.queue.queue_id, message.queue_offset
        run = self._runs.get(queue_id)
        if run is None or not self._may_pass(queue_id, run.reached, offset):
            raise self._violation("members go on where they were sent", queue_id, f"got {offset}, {run}")
        run.reached = offset + 1
        self._rules.place(self.group, queue_id).read.add(offset)
        self._context.journal.did("message read after resets")

    def reports(self, queue_id: int, offset: int) -> Report:
        """Judges a report that is about to leave: an offset that the member came to since its begin.

        Raises Violation.
        """
        run = self._runs.get(queue_id)
        if (
            run is None
            or offset < run.begin
            or not (offset <= run.reached or self._may_pass(queue_id, run.reached, offset))
        ):
            raise self._violation("members report where they are", queue_id, f"reports {offset}, {run}")
        report = Report(offset, run.known_ns)
        self._rules.place(self.group, queue_id).reports.append(report)
        return report

    @contextmanager
    def asking(self, fields: Fields, body: Buffer) -> Iterator[Attempt]:
        """Watches a pull, or a question for the stored offset or the begin, from its leaving to its answer."""
        assert isinstance(fields, dict), "as calls about queues are made"
        attempt = Attempt()
        if fields["topic"] != TOPIC:
            yield attempt
            return
        # Noted as it leaves: by the pull itself an order may end, before its answer has come.
        queue_id, since_ns = int(fields["queueId"]), self._now_ns()
        is_pull = "queueOffset" in fields
        asking = _Asking(int(fields["queueOffset"]) if is_pull else None, since_ns)
        self._rules.place(self.group, queue_id).asking.append(asking)
        yield attempt
        answer = attempt.answer
        if answer is None:
            return
        asking.until_ns = self._now_ns()
        if not is_pull and answer.code == ResponseCode.SUCCESS:
            self.begins(queue_id, int(answer.fields["offset"]), since_ns)
        elif is_pull and answer.code == ResponseCode.PULL_OFFSET_MOVED and answer.remark == "OFFSET_RESET":
            self.sent(queue_id, int(answer.fields["nextBeginOffset"]))

    def _may_pass(self, queue_id: int, begin: int, end: int) -> bool:
        return self._context.model.may_pass(TOPIC, queue_id, begin, end)

    def _violation(self, invariant: str, queue_id: int, detail: str) -> Violation:
        violation = Violation(invariant, self._name, f"{self.group} at {TOPIC}/{queue_id}: {detail}")
        self._context.journal.found(violation)  # at once: the member's tasks take a while to end
        return violation
