"""Judges what clients are told: each answer is held against the group's model when it arrives.

Clients record every attempt into their trace. The judge reads along: an answer is linearizable if the model was in the
state that it tells of at some moment between the question and the answer, which the model knows exactly, because it
holds the time of each commit. (The Spark job must search for such an order; here it is known.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.client.message import SendResult
from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import FAIL, FUNCTION_NAMES, OK
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue, GroupModel
from simulation.judges.stored_offsets import NEVER, OffsetRequest, first_unasked
from simulation.scheduler import SECOND

ENDS: Final = "the end of a queue is linearizable"


@dataclass(slots=True)
class Question:
    """A request of a client: something asked, or something to be done."""

    process: str
    topic: str
    queue_id: int
    group: str
    values: tuple[str, ...]
    offset: int
    since_ns: int
    request: OffsetRequest | None = None

    @property
    def offset_key(self) -> tuple[str, str, int]:
        return self.group, self.topic, self.queue_id


@dataclass(slots=True)
class Unanswered:
    """Attempts to send since the last one that was acknowledged: how many, and since when."""

    sends: int = 0
    since_ns: int = 0


def _untrue(invariant: str, asked: Question, detail: str) -> Violation:
    return Violation(invariant, asked.process, f"{detail}; asked at {asked.since_ns / SECOND:.6f} s")


class ClientJudge:
    """Judges all clients of a world."""

    def __init__(self, model: GroupModel, now_ns: Callable[[], int], *, afterwards: bool = False) -> None:
        """`afterwards`: all is over, and the model knows of each commit by when it happened, but not exactly when.

        Then a commit that is late in the model is no proof against an answer that came before it, and stored offsets
        are accounted for when all requests are known.
        """
        self._afterwards = afterwards
        self._model = model
        self._now_ns = now_ns
        self._requests: dict[tuple[str, str, int], list[OffsetRequest]] = {}
        """(consumer group, topic, queue id) -> requests to store an offset."""
        self._offsets_judged: dict[tuple[str, str, int], int] = {}
        """The number of changes in the model's history of a queue's offsets that were judged."""
        self.outcomes: dict[tuple[str, str], list[str]] = {}
        """(topic, unique key) -> how each attempt to store it ended: "open" until known, then ok, fail or info."""
        self.at_most_once: dict[str, None] = {}
        """Keys of producers whose messages are stored once at most."""
        self.may_come_again: dict[str, None] = {}
        """Those of them that the group has been allowed to forget."""
        self.unanswered = Unanswered()
        self.acknowledged = 0
        self.read = 0
        self.answered = 0

    def asked(
        self, process: str, key: str, group: str | None, values: Sequence[str], offset: int
    ) -> Question:
        """Notes a request; returns it for the calls that tell how it ended."""
        topic, _, queue = key.rpartition("/")
        for value in values:
            self.outcomes.setdefault((topic, value), []).append("open")
        if values:
            self.unanswered.sends += 1
            if self.unanswered.sends == 1:
                self.unanswered.since_ns = self._now_ns()
        queue_id = int(queue.rpartition(":")[2])
        return Question(process, topic, queue_id, group or "", tuple(values), offset, self._now_ns())

    def stored(self, asked: Question, base_offset: int) -> None:
        """Judges an acknowledgement: the message is committed, where it says. Raises Violation."""
        self.acknowledged += len(asked.values)
        self.unanswered.sends = 0
        queue = self._model.queues.get((asked.topic, asked.queue_id))
        held = queue.keys[base_offset : base_offset + len(asked.values)] if queue is not None else []
        if tuple(held) != asked.values and asked.topic not in self._model.deleted_topics:
            raise _untrue(
                "acknowledged messages are committed",
                asked,
                f"{asked.topic}/{asked.queue_id} offset {base_offset}: acknowledged {asked.values}, committed {held}",
            )
        self._ended(asked, "ok")

    def placed(self, process: str, results: Sequence[SendResult]) -> None:
        """Judges the places of messages that are stored once: each is where its sender was told, and nowhere else.

        Raises Violation.
        """
        for result in results:
            queue = result.queue
            places = self._model.keys.get((queue.topic, result.message_id))
            told = [(queue.queue_id, result.queue_offset)]
            if places != told and queue.topic not in self._model.deleted_topics:
                raise Violation(
                    "stored once", process, f"{result.message_id}: told {told}, stored at {places}"
                )

    def failed(self, asked: Question, outcome: str) -> None:
        """Notes that a request failed, certainly ("fail") or of unknown outcome ("info")."""
        if asked.values:
            self._ended(asked, outcome)
        # One of unknown outcome stays: its offset may be stored at any time, and is accounted for by it then.
        if asked.request is not None and outcome == "fail":
            self._requests[asked.offset_key].remove(asked.request)

    def _ended(self, asked: Question, outcome: str) -> None:
        for value in asked.values:
            outcomes = self.outcomes[asked.topic, value]
            # Which of the open attempts at this message it was makes no difference to what is judged.
            outcomes[outcomes.index("open")] = outcome

    def was_read(
        self, asked: Question, next_offset: int, offsets: int | Sequence[int], values: Sequence[str]
    ) -> None:
        """Judges a pull: it returns committed messages, and leaves none out. Raises Violation."""
        if asked.topic in self._model.deleted_topics:
            return  # which life of the topic the client read, its trace does not say
        places = range(offsets, offsets + len(values)) if isinstance(offsets, int) else offsets
        queue = self._model.queues.get((asked.topic, asked.queue_id), CommittedQueue())
        keys = queue.keys
        expected = asked.offset
        for offset, value in zip(places, values, strict=True):
            if offset >= len(keys) or keys[offset] != value:
                held = keys[offset] if offset < len(keys) else "nothing"
                raise _untrue(
                    "reads return what is committed",
                    asked,
                    f"{asked.topic}/{asked.queue_id} offset {offset}: read {value}, committed {held}",
                )
            self._passed(asked, queue, expected, offset)
            expected = offset + 1
        self.read += len(values)
        # Who has asked from behind the end may be left there.
        if next_offset > len(keys) and next_offset > asked.offset:
            raise _untrue(
                "reads leave nothing out",
                asked,
                f"sent forward to {next_offset}, committed {len(keys)}",
            )
        if next_offset > expected:
            self._passed(asked, queue, expected, next_offset)
        # Nothing, and nothing further on: that says where the queue ends, or that it does so before.
        if not values and next_offset <= asked.offset and next_offset < queue.end_at(asked.since_ns):
            raise _untrue(
                ENDS,
                asked,
                f"{asked.topic}/{asked.queue_id} is said to end at {next_offset}, but it was at "
                f"{queue.end_at(asked.since_ns)} before it was asked",
            )

    def _passed(self, asked: Question, queue: CommittedQueue, expected: int, offset: int) -> None:
        """Judges a reader that is at `offset` and not at `expected`: it may pass what some node has deleted."""
        if offset == expected:
            return
        kept = queue.first_kept(expected, offset, self._model.kept_from) if offset > expected else offset
        if kept < offset or offset < expected:
            raise _untrue(
                "reads leave nothing out",
                asked,
                f"{asked.topic}/{asked.queue_id}: asked for {expected}, got {offset}; {kept} is kept",
            )

    def ended_at(self, asked: Question, offset: int) -> None:
        """Judges a query of a queue's end: nothing acknowledged before is missing, nothing uncommitted shows.

        Raises Violation.
        """
        self.answered += 1
        if asked.topic in self._model.deleted_topics:
            return
        queue = self._model.queues.get((asked.topic, asked.queue_id))
        lowest, highest = (queue.end_at(asked.since_ns), len(queue.keys)) if queue is not None else (0, 0)
        if not lowest <= offset <= highest:
            raise _untrue(
                ENDS,
                asked,
                f"{asked.topic}/{asked.queue_id} ends at {offset}, but at {lowest}..{highest} while it was asked",
            )

    def asked_to_store(self, asked: Question) -> None:
        """Notes that a request is to store an offset of a consumer group."""
        request = OffsetRequest(asked.offset, asked.since_ns)
        self._requests.setdefault(asked.offset_key, []).append(request)
        asked.request = request

    def ordered(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Notes that an administrator's order is committed, which stores an offset as a request would."""
        now_ns = self._now_ns()
        request = OffsetRequest(offset, now_ns, now_ns)
        self._requests.setdefault((group, topic, queue_id), []).append(request)

    def offset_stored(self, asked: Question) -> None:
        """Judges an acknowledged offset: it was committed since the request left, or another one outdid it at once.

        Raises Violation.
        """
        self.answered += 1
        if not self._afterwards:
            if asked.request is not None:
                # It was carried out by now, and accounts for nothing that is stored later.
                asked.request.until_ns = self._now_ns()
            self._account_for_offsets(asked.offset_key)
        history = self._model.offsets.get(asked.offset_key, [])
        since = bisect_left(history, asked.since_ns, key=lambda item: item[0])
        before = history[since - 1][1] if since else None
        stored = [value for _, value in history[since:]]
        if asked.offset not in (before, *stored) and not any(value is not None for value in stored):
            raise _untrue(
                "acknowledged offsets are committed",
                asked,
                f"{asked.group} at {asked.topic}/{asked.queue_id}: {asked.offset} acknowledged, committed {before}",
            )

    def _account_for_offsets(self, key: tuple[str, str, int]) -> None:
        requests, history = self._requests.get(key), self._model.offsets.get(key, [])
        begin = self._offsets_judged.get(key, 0)
        if requests is None or begin == len(history):
            return  # nobody has recorded what this group's members ask for, or nothing is new
        self._offsets_judged[key] = len(history)
        unasked = first_unasked(history, begin, requests)
        if unasked is not None:
            time_ns, offset = unasked
            group, topic, queue_id = key
            raise Violation(
                "offsets are stored when clients ask",
                "clients",
                f"{group} at {topic}/{queue_id}: {offset} was stored at {time_ns / SECOND:.6f} s, "
                f"which no request accounts for, or no further one; stored were {history[-5:]}",
            )

    def offset_was(self, asked: Question, offset: int | None) -> None:
        """Judges a stored offset: it was in force at some moment while it was asked for. Raises Violation."""
        self.answered += 1
        if not self._afterwards:
            self._account_for_offsets(asked.offset_key)
        history = self._model.offsets.get(asked.offset_key, [])
        since = bisect_right(history, asked.since_ns - 1, key=lambda item: item[0])
        possible = [history[since - 1][1] if since else None, *(value for _, value in history[since:])]
        # A consumer group without an offset starts at 0 on a queue from which nothing was deleted yet.
        if offset not in possible and not (offset == 0 and None in possible):
            raise _untrue(
                "stored offsets are linearizable",
                asked,
                f"{asked.group} at {asked.topic}/{asked.queue_id}: told {offset}, was {possible[-5:]}",
            )

    def offsets_to_come(self, group: str, topic: str, queue_id: int) -> list[int]:
        """Returns the offsets that clients asked to store and nobody acknowledged: they may be stored, now or later."""
        requests = self._requests.get((group, topic, queue_id), ())
        return [request.offset for request in requests if request.until_ns == NEVER]

    def acknowledged_from(self, position: int) -> int:
        """Counts the acknowledged messages that stand at `position` of the log or behind it, and nowhere before."""
        number = 0
        for (topic, value), outcomes in self.outcomes.items():
            if "ok" in outcomes and topic not in self._model.deleted_topics:
                places = self._model.keys.get((topic, value), [])
                queues = self._model.queues
                if places and all(
                    queues[topic, queue_id].positions[offset] >= position for queue_id, offset in places
                ):
                    number += 1
        return number

    def check_outcomes(self) -> None:
        """Judges the end: what certainly failed is not there, what must not be repeated is there once.

        Raises Violation.
        """
        for key in self._requests:
            self._account_for_offsets(key)
        for (topic, value), outcomes in self.outcomes.items():
            places = self._model.keys.get((topic, value), [])
            if places and all(outcome == "fail" for outcome in outcomes):
                raise Violation("failed sends leave nothing", "clients", f"{value} failed and is at {places}")
            once = value in self.at_most_once and value not in self.may_come_again
            if len(places) > 1 and (once or len(places) > len(outcomes)):
                raise Violation(
                    "no duplicates", "clients", f"{value}: attempts {outcomes}, stored at {places}"
                )


class OpenRequests:
    """The requests of one client that are under way, told to the judge as the client's trace tells of them."""

    def __init__(self, judge_of: Callable[[str], ClientJudge], process: str, *, at_most_once: bool) -> None:
        """`judge_of` returns the judge of the group that a queue belongs to, by the trace's name of that queue.

        `at_most_once`: the client's messages are stored once at most.
        """
        self._judge_of = judge_of
        self._process = process
        self._at_most_once = at_most_once
        self._asked: dict[int, tuple[str, Question, ClientJudge]] = {}
        """The function of each operation that is under way, its question, and who judges the response."""

    def began(self, operation: int, function: str, key: str, argument: Any, group: str | None) -> None:
        """Notes an invocation, `argument` as the trace format has it."""
        judge = self._judge_of(key)
        values: tuple[str, ...] = ()
        offset = 0
        match function:
            case "append":
                values = tuple(argument)
                if self._at_most_once:
                    judge.at_most_once.update(dict.fromkeys(values))
            case "read":
                offset = argument[0]
            case "commit_offset":
                offset = argument
        question = judge.asked(self._process, key, group, values, offset)
        if function == "commit_offset":
            judge.asked_to_store(question)
        self._asked[operation] = function, question, judge

    def answered(self, operation: int, result: Any) -> None:
        """Judges a completion, `result` as the trace format has it. Raises Violation."""
        function, question, judge = self._asked.pop(operation)
        match function:
            case "append":
                judge.stored(question, result)
            case "read":
                next_offset, offsets, values, _ = result
                judge.was_read(question, next_offset, offsets, values)
            case "tail":
                judge.ended_at(question, result)
            case "commit_offset":
                judge.offset_stored(question)
            case "fetch_offset":
                judge.offset_was(question, result)

    def failed(self, operation: int, outcome: str) -> None:
        """Notes that a request failed, certainly ("fail") or of unknown outcome ("info")."""
        _, question, judge = self._asked.pop(operation)
        judge.failed(question, outcome)


class ClientWriter(TraceWriter):
    """A client's trace, judged as it is written: what completes may raise Violation. Times are true ones: one axis for
    all hosts."""

    __slots__ = ("_now_ns", "_requests")

    def __init__(
        self,
        write: Callable[[bytes], object],
        header: TraceHeader,
        judge_of: Callable[[str], ClientJudge],
        now_ns: Callable[[], int],
        *,
        at_most_once: bool = False,
    ) -> None:
        super().__init__(write, header)
        self._now_ns = now_ns
        self._requests = OpenRequests(judge_of, header.process, at_most_once=at_most_once)

    def _end(self, record: tuple[Any, ...]) -> None:
        super()._end((record[0], self._now_ns(), *record[2:]))
        kind, _, operation, result, *_ = record
        if kind == OK:
            self._requests.answered(operation, result)
        else:
            self._requests.failed(operation, "fail" if kind == FAIL else "info")

    def _invoke(
        self, time_ns: int, process: str, function: int, key: str, argument: object, group: str | None
    ) -> int:
        operation = super()._invoke(self._now_ns(), process, function, key, argument, group)
        self._requests.began(operation, FUNCTION_NAMES[function], key, argument, group)
        return operation
