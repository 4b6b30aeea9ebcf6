"""Consumer offsets on their way into the log, many to a command.

Consumers report offsets far more often than anyone reads them: with every pull, and every five seconds for each
queue. So a report that nobody waits for is staged, and one command takes all that has been staged within
`COALESCE_NS`. A report that wants a response, or a question for an offset that is staged, sends the command off at
once, and so does whatever else sets or deletes offsets: it goes behind what was reported before it. What fills a
command does not wait either: no call has more than one command to write, however many queues a client reports at
once. What was staged and lost with the leader, or for want of room, is reported again by its consumer.

An offset belongs to the topic and the consumer group that it was decided for, and neither has more of an identity in
the log than its name. So none goes into the log behind the deletion of one of them before that is applied: with the
topic made again in between, the new one would have it. All commands of a term are its leader's, which serves when it
has applied those of earlier terms; so what it has under way is all that there can be.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from broker.node.group_limit import GroupLimit
from broker.node.listeners import Listeners
from broker.node.ports import Proposals
from broker.remoting.codes import ResponseCode
from broker.replica.proposals import ignore
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import NotServingError, ReplicaError, RequestError, TooManyError
from broker.settings.live import LiveSettings
from broker.state.commands import CommitOffsets, EndResets, ResetOffsets
from log.errors import DiskFullError

COALESCE_NS: Final = 100_000_000

StoredOffset = tuple[str, str, int, int]
"""Consumer group, topic, queue id, offset."""

_Part = TypeVar("_Part")
_Key = tuple[str, str, int]
"""Consumer group, topic, queue id."""
Uncounted = Mapping[_Key, int]
"""Reports that did not count, as an administrator sends the consumer group elsewhere; the value is where to."""
NotStored = ReplicaError | DiskFullError
"""The reason why nothing of a report is in the log: no room, or another leader is to be asked (`NotServingError`)."""
Lost = Callable[[NotStored | None], None]
"""Called when a report will not be applied, with the reason; with None if nobody knows whether it will be."""
_Waiter = tuple[Callable[[Uncounted], None], Lost]
"""Called once offsets are applied, and when they are lost; one of the two, once."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    """Offsets, or the end of an order, that are in the log and not applied yet, and who waits for that."""

    keys: dict[_Key, int]
    is_order: bool = False
    """The offsets are an administrator's order, and no reports: they count in any case."""
    is_followed: bool = False
    """The offsets are an order that consumers are to follow: no reports count behind it."""
    ended: _Key | None = None
    """The queue in which consumers have followed an order: once this is applied, reports count there again."""
    is_former: bool = False
    """The leadership has ended since: the log may have lost this, so nobody knows whether it will be applied."""
    waiting: list[_Waiter] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _PartlyOrdered:
    """An order that goes into the log part by part; says once what has become of it."""

    _done: Callable[[], None]
    _lost: Callable[[], None]
    _is_complete: bool = False
    has_begun: bool = False
    """Some of it is in the log."""
    is_lost: bool = False
    parts_under_way: int = 0

    def part_applied(self, _: Uncounted) -> None:
        self.parts_under_way -= 1
        self._look()

    def complete(self) -> None:
        """All parts are in the log."""
        self._is_complete = True
        self._look()

    def _look(self) -> None:
        if self._is_complete and not self.parts_under_way and not self.is_lost:
            self._done()

    def lose(self) -> None:
        """A part could not be proposed, or it is unknown whether it will be applied."""
        if not self.is_lost:
            self.is_lost = True
            self._lost()


class OffsetCommits:
    """Staged consumer offsets of the leader."""

    def __init__(
        self,
        leadership: Proposals,
        settings: LiveSettings,
        group_limit: GroupLimit,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._group_limit = group_limit
        self._settings = settings
        self._per_command = leadership.limits.queues_per_command
        self._time = time
        self._staged: dict[_Key, int] = {}
        """The offsets that the next command takes. Without any nothing of them is left: nobody in `_waiting`, no
        `_staged_new`, no `_staged_claims`."""
        self._under_way: list[_UnderWay] = []
        """The proposals that are not applied yet, in the order of the log."""
        self._staged_new = self._under_way_new = 0
        """The numbers of staged offsets, and of those under way, that are a consumer group's first in a queue."""
        self._staged_claims: list[Callable[[], None]] = []
        """For staged offsets of consumer groups that are not known otherwise: frees the room that they take."""
        self._waiting: list[_Waiter] = []
        self.dropped = 0
        """The number of reports that this node did not take, or staged and could not write, as a leader."""
        self._deletions: list[Callable[[str, str], bool]] = []
        """Deletions under way: each tells whether it is of this consumer group, or of this topic."""
        self._deadline = time.add_deadline(self.propose)
        listeners.role_changes.append(self._role_changed)

    @property
    def staged(self) -> Mapping[_Key, int]:
        """The offsets that the next command takes."""
        return self._staged

    @property
    def new_under_way(self) -> int:
        """The number of offsets under way that are a consumer group's first in a queue."""
        return self._under_way_new

    def begin_deletion(self, concerns: Callable[[str, str], bool]) -> Callable[[], None]:
        """To be called before a deletion is proposed; returns what is to be called when it is applied, or lost.

        `concerns` tells whether it is of a consumer group, or of a topic. What was reported before goes before it, and
        what comes in between is not taken.
        """
        self.propose()
        self._deletions.append(concerns)

        def end() -> None:
            self._deletions.remove(concerns)

        return end

    def is_deleting(self, group: str, topic: str) -> bool:
        """Tells whether the deletion of that consumer group, or of that topic, is under way."""
        return any(concerns(group, topic) for concerns in self._deletions)

    def _check_not_deleted(self, group: str, topic: str) -> None:
        if self.is_deleting(group, topic):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"topic [{topic}] or consumer group [{group}] is being deleted: ask again",
            )

    def stage(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stages a report that nobody waits for."""
        key = (group, topic, queue_id)
        # The stored one is the last word on the queue only if nothing else is on its way.
        if key not in self._staged and self._proposed_last(key) is None:
            known = self._leadership.metadata.offsets.get((group, topic))
            if known is not None and known.get(queue_id) == offset:
                return  # nothing new: an idle consumer must not grow the log
        if key not in self._staged:
            try:
                self._check_not_deleted(group, topic)
                self._take_room(key)
            except RequestError:
                self.dropped += 1
                return  # whoever asks for a response is told
        self._deadline.due_ns = min(self._deadline.due_ns, self._time.now_ns + COALESCE_NS)
        self._staged[key] = offset
        self._propose_if_full()

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        done: Callable[[int | None], None],
        lost: Lost,
    ) -> None:
        """Stages a report that is answered: calls `done` once it is committed, `lost` when it is refused or that is
        unknown.

        `done` is told where the consumer group is sent if the report does not count, else None.

        Raises `RequestError` when there would be one offset, or one consumer group, too many, and while topic or
        consumer group are being deleted.
        """
        # Of several reports of a queue that are staged together the last one counts, and room is taken once.
        key = (group, topic, queue_id)
        if key not in self._staged:
            self._check_not_deleted(group, topic)
            self._take_room(key)
        self._staged[key] = offset
        # In the next turn, as somebody waits: with all that has come until then.
        self._waiting.append((lambda uncounted: done(uncounted.get(key)), lost))
        self._deadline.due_ns = self._time.now_ns
        self._propose_if_full()

    def _propose_if_full(self) -> None:
        if len(self._staged) >= self._per_command:
            self.propose()

    def check_room(self, group: str, queue_ids: Mapping[str, Collection[int]]) -> None:
        """Raises `RequestError` where a consumer group cannot be given an offset in all these queues of topics."""
        stored = self._leadership.metadata.offsets.by_group.get(group, {})
        self._check_room(
            sum(len(set(ids) - stored.get(topic, {}).keys()) for topic, ids in queue_ids.items())
        )

    def has_room(self, new: int) -> bool:
        """Tells whether so many new offsets may be stored."""
        count, most = (
            self._leadership.metadata.offsets.count,
            self._settings.current.limits.max_stored_offsets,
        )
        return not new or count + self._staged_new + self._under_way_new + new <= most

    def _check_room(self, new: int) -> None:
        if not self.has_room(new):
            raise _too_many(self._settings.current.limits.max_stored_offsets)

    def commit_all(
        self,
        offsets: Sequence[StoredOffset],
        done: Callable[[Uncounted], None],
        lost: Callable[[], None],
        *,
        until_followed: bool,
    ) -> None:
        """Proposes many offsets at once by an administrator's order, behind what is staged.

        `until_followed` parks them (broker/offsets/resets.py). Raises as `commit`, and as `Leadership.propose_command`.
        """
        if self._deletions:
            for group, topic in dict.fromkeys(offset[:2] for offset in offsets):
                self._check_not_deleted(group, topic)
        stored = self._leadership.metadata.offsets
        self._check_room(
            sum(queue_id not in stored.get((group, topic), ()) for group, topic, queue_id, _ in offsets)
        )
        self.propose()  # what was reported before may not come after it
        free = self._claim(group for group, *_ in offsets)

        def settled(uncounted: Uncounted) -> None:
            free()
            done(uncounted)

        def not_known() -> None:
            free()
            lost()

        def order(some: tuple[StoredOffset, ...]) -> CommitOffsets | ResetOffsets:
            return ResetOffsets(some) if until_followed else CommitOffsets(some, is_order=True)

        try:
            self._propose_all(offsets, order, settled, not_known, is_order=True, is_followed=until_followed)
        except (ReplicaError, DiskFullError):
            free()
            raise

    def order_in_steps(
        self,
        parts: Iterable[_Part],
        offsets_of: Callable[[_Part], Sequence[StoredOffset]],
        done: Callable[[], None],
        lost: Callable[[], None],
        *,
        until_followed: bool = False,
    ) -> Iterator[None]:
        """Proposes the offsets of an administrator's order part by part, each as `commit_all` does, one in a step.

        Calls `done` when all are applied, `lost` if it is unknown which of them will be. `offsets_of` is asked for the
        offsets of a part in its step, as much may have changed since the one before; what it raises, and `commit_all`,
        is raised as long as nothing is in the log.
        """
        order = _PartlyOrdered(done, lost)
        try:
            for number, part in enumerate(parts):
                if number:
                    yield
                # The leadership has ended: what of the order is in the log is the next leader's, and its sender was
                # told.
                if order.is_lost:
                    return
                if offsets := offsets_of(part):
                    self.commit_all(offsets, order.part_applied, order.lose, until_followed=until_followed)
                    order.parts_under_way += 1
                    order.has_begun = True
        except (ReplicaError, DiskFullError, RequestError):
            if not order.has_begun:
                raise
            # Parts that are in the log may still be committed: no error may say now that nothing was done.
            order.lose()
            return
        order.complete()

    def _propose_all(
        self,
        offsets: Sequence[StoredOffset],
        command: Callable[[tuple[StoredOffset, ...]], CommitOffsets | ResetOffsets],
        done: Callable[[Uncounted], None],
        lost: Callable[[], None],
        *,
        is_order: bool = False,
        is_followed: bool = False,
    ) -> None:
        """Proposes offsets as commands that fit into a file; calls `done` with the last one, behind which all others
        are applied.

        Raises as `Leadership.propose_command`, with nothing of them in the log; if some are, it is `lost`.
        """
        assert offsets, "the last of the commands says that all are applied"
        under_way = _UnderWay({offset[:3]: offset[3] for offset in offsets}, is_order, is_followed)
        uncounted: dict[_Key, int] = {}

        def some_applied(result: dict[_Key, int] | None) -> None:
            uncounted.update(result or ())

        def applied(result: dict[_Key, int] | None) -> None:
            self._under_way.remove(under_way)
            some_applied(result)
            done(uncounted)
            for ready, _ in under_way.waiting:
                ready(uncounted)

        def not_known() -> None:
            self._under_way.remove(under_way)
            lost()
            for _, is_lost in under_way.waiting:
                is_lost(None)

        # Whoever asks for one of these offsets waits from now on, even if only a part of them gets into the log.
        self._under_way.append(under_way)
        for begin in range(0, len(offsets), self._per_command):
            end = begin + self._per_command
            is_last = end >= len(offsets)
            try:
                self._leadership.propose_command(
                    command(tuple(offsets[begin:end])),
                    applied if is_last else some_applied,
                    not_known if is_last else ignore,
                )
            except (ReplicaError, DiskFullError):
                if begin:
                    not_known()  # some of them count nevertheless
                    return
                self._under_way.remove(under_way)
                raise

    def _proposed_last(self, key: _Key) -> _UnderWay | None:
        """Returns the last proposal that has a queue, None if all are applied."""
        if not self._under_way:
            return None
        return next((under_way for under_way in reversed(self._under_way) if key in under_way.keys), None)

    def has_any_under_way(self, group: str, topic: str, queue_ids: Iterable[int]) -> bool:
        """Tells whether an offset of one of these queues is in the log and not applied yet, by an order or a report."""
        return any(self._proposed_last((group, topic, queue_id)) is not None for queue_id in queue_ids)

    def has_order_under_way(self, key: _Key) -> bool:
        """Returns True while an order that a consumer is to follow is on its way to a queue."""
        return any(under_way.is_followed and key in under_way.keys for under_way in self._under_way)

    def end_order(self, key: _Key, target: int, done: Callable[[], None]) -> None:
        """Proposes that consumers have followed an order, and calls `done` when that is applied.

        What was reported while the order stood goes before it. Raises as `Leadership.propose_command`.
        """
        self.propose()
        under_way = _UnderWay({}, ended=key)

        def applied(_: object) -> None:
            self._under_way.remove(under_way)
            done()

        self._leadership.propose_command(
            EndResets(((*key, target),)), applied, lambda: self._under_way.remove(under_way)
        )
        self._under_way.append(under_way)

    def lowest(self, key: _Key, stored: int) -> int:
        """Returns the lowest of a stored offset and those on their way to take its place.

        Reports that will not count, as an order stands where they are in the log, are none of these.
        """
        lowest, stands = stored, self._leadership.metadata.parked.get(*key) is not None
        for under_way in self._under_way:
            if under_way.is_former:
                continue
            if under_way.ended == key:
                stands = False
            elif key in under_way.keys and (under_way.is_order or not stands):
                # One that members need not follow ends an earlier order; a report comes here where none stands.
                lowest, stands = min(lowest, under_way.keys[key]), under_way.is_followed
        return lowest if stands else min(lowest, self._staged.get(key, lowest))

    def _take_room(self, key: _Key) -> None:
        """Counts an offset that is not staged if it is the consumer group's first in a queue.

        Raises `RequestError` where there is no room for it, or for its consumer group.
        """
        metadata = self._leadership.metadata
        group, topic, queue_id = key
        if queue_id in metadata.offsets.get((group, topic), ()):
            return
        count, most = (
            metadata.offsets.count + self._staged_new + self._under_way_new,
            self._settings.current.limits.max_stored_offsets,
        )
        if count >= most:
            raise _too_many(most)
        # A consumer group may have no settings and be known by its offsets alone: then it takes a place among
        # `limits.max_groups`.
        if not metadata.knows_group(group):
            self._staged_claims.append(self._claim((group,)))
        self._staged_new += 1

    def _claim(self, groups: Iterable[str]) -> Callable[[], None]:
        try:
            return self._group_limit.claim(groups)
        except TooManyError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the consumer group does not exist, and {error}"
            ) from error

    def when_settled(
        self, group: str, topic: str, queue_id: int, ready: Callable[[], None], lost: Callable[[], None]
    ) -> bool:
        """Returns False when no offset of this queue is on its way; else proposes what is staged, and calls `ready`
        when it is applied.
        """
        key = (group, topic, queue_id)
        if key not in self._staged:
            under_way = self._proposed_last(key)
            if under_way is None:
                return False
            under_way.waiting.append((lambda _: ready(), lambda _: lost()))
            return True
        self._waiting.append((lambda _: ready(), lambda _: lost()))
        self._deadline.due_ns = self._time.now_ns
        return True

    def propose(self) -> None:
        """Proposes what is staged."""
        self._deadline.due_ns = NEVER
        # What comes from here on belongs to the next proposal, also what `lost` has its callers do at once.
        staged, self._staged = self._staged, {}
        waiting, self._waiting = self._waiting, []
        if not staged:
            assert not waiting, f"{len(waiting)} wait for offsets that are not staged"
            assert not self._staged_new, f"{self._staged_new} offsets are counted that are not staged"
            return
        offsets = [(*key, offset) for key, offset in staged.items()]
        new, self._staged_new = self._staged_new, 0
        assert 0 <= new <= len(staged), "an offset that is a group's first is counted once"
        self._under_way_new += new
        claims, self._staged_claims = self._staged_claims, []

        def end() -> None:
            self._under_way_new -= new
            # A count that drifted would in time refuse every new offset, or let them grow without end.
            assert self._under_way_new >= 0, f"{new} offsets were counted once more than they came"
            for free in claims:
                free()

        def done(uncounted: Uncounted) -> None:
            end()
            for ready, _lost in waiting:
                ready(uncounted)

        def lost(reason: NotStored | None = None) -> None:
            end()
            for _ready, is_lost in waiting:
                is_lost(reason)

        try:
            self._propose_all(offsets, CommitOffsets, done, lost)
        except (ReplicaError, DiskFullError) as error:
            self.dropped += len(staged)
            lost(error)

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            # Who waits for these is told in turns, perhaps in a later term of this node.
            for under_way in self._under_way:
                under_way.is_former = True
            self._staged.clear()
            self._staged_new = 0
            claims, self._staged_claims = self._staged_claims, []
            for free in claims:
                free()
            self._deadline.due_ns = NEVER
            waiting, self._waiting = self._waiting, []
            for _, lost in waiting:
                lost(NotServingError(None))


def _too_many(most: int) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"at most {most} offsets of consumer groups in queues are stored (limits.max_stored_offsets)",
    )
