"""Linearizability by search: Wing and Gong's algorithm with Lowe's memory of visited configurations.

For models that have no shortcut. A model is a pure step function; the search tries every operation that no completed
one precedes, and remembers configurations (operations done, state) so that none is tried twice. Three reductions, each
of which keeps at least one linearization if there is any:

* A completed operation that changes no state, whatever the state (the model names them, ``is_read``), happens as soon
  as it can have had its result. In any linearization of what is left it can be moved to the front: nothing precedes it
  in real time, and nobody notices.
* An operation of unknown outcome that would leave the state as it is does not happen yet: nobody would notice.
* Of several unknown operations that are alike the earliest happens first: it could stand wherever a later one does.

And a look ahead: a configuration is given up as soon as one of the next reads cannot have its result any more, whatever
else happens before it; each model says what it knows of that (``reaches``).

The search is exponential at worst, so it has bounds: a number of configurations, the bytes that it keeps, and a clock
given by the caller. Beyond any of them the answer is "undecided", and says which. Bytes are counted, not measured, so
that the answer is the same everywhere; what Python takes in truth is at most about that much.

Sources: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); Lowe, "Testing for Linearizability" (2017).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, VerdictName
from spark_analysis.importing.calls import Call

State = Hashable
# The states after an operation: empty if it cannot happen in this state. ``completed`` is False for unknown outcomes,
# whose result says nothing.
Step = Callable[[Any, str, Any, Any, bool], Sequence[Any]]
Bound = Literal["configurations", "memory", "time"]

MAXIMUM_CONFIGURATIONS: Final = 2_000_000
MAXIMUM_BYTES: Final = 512 << 20
READS_AHEAD: Final = 16
MAXIMUM_READS_AHEAD: Final = 1024
_STEPS_BETWEEN_LOOKS_AT_THE_CLOCK: Final = 256
# What CPython 3.11 takes: a slot of a set or a dict at its emptiest, the objects in it, a frame with its list.
_CONFIGURATION_BYTES: Final = 120
_STATE_BYTES: Final = 200
_FRAME_BYTES: Final = 250


# Whether a read can have its result after the state and any of the calls ``before``, in any order; True if in doubt.
Reaches = Callable[[Any, Call, Sequence[Call]], bool]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The verdict on one key. ``prefix``: operation ids of the longest linearization found; ``stuck``: those that could
    not follow it; ``bound``: the bound that ended an undecided search. Where a rule found the violation, ``because``
    says in a sentence why the operations ``stuck`` exclude every order, and there is no ``prefix``."""

    verdict: VerdictName
    configurations: int
    prefix: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()
    bound: Bound | None = None
    because: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that the search for one key may take; beyond any of these bounds the key is undecided."""

    seconds: float = 120.0
    memory_bytes: int = MAXIMUM_BYTES
    configurations: int = MAXIMUM_CONFIGURATIONS


def search(
    calls: Sequence[Call],
    step: Step,
    initial: State,
    *,
    is_read: Callable[[Call], bool] = lambda call: False,
    reaches: Reaches = lambda state, read, before: True,
    maximum_configurations: int = MAXIMUM_CONFIGURATIONS,
    maximum_bytes: int = MAXIMUM_BYTES,
    is_over: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Search for an order of ``calls`` that respects real time and that the model allows.

    An operation precedes another in real time if it completed strictly before the other was invoked. ``is_over`` is
    asked now and then and ends the search as undecided (a time budget: this module has no clock). ``is_read`` must be
    True only for calls that never change a state, and ``reaches`` False only for results that cannot come any more;
    both only make the search faster.
    """
    return _Search(calls, step, is_read, reaches, maximum_configurations, maximum_bytes, is_over).run(initial)


class OutOfBoundsError(Exception):
    """Ends the search as undecided."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self.bound: Bound = bound


class _Frame:
    """A configuration whose successors are being tried, and how far that has come."""

    __slots__ = ("depth", "done", "first_left", "number", "pending", "place", "size", "state", "unknown_done")

    def __init__(self, search: _Search, state: Any, size: int) -> None:
        self.state, self.size = state, size
        self.depth = len(search.path)
        self.first_left, self.done, self.unknown_done = search.first_left, search.done, search.unknown_done
        self.place = 0  # of the entry that was tried last
        self.number = 0  # its call
        self.pending: list[Any] = []  # states that it leads to and that are still to be tried


class _Search:
    """Entries are the invocations and completions in order of time, in two linked lists that begin and end at 0.

    One list has the completed calls, the other the invocations of unknown outcome. What is linearized is taken out of
    its list, so the calls that may come next are those before the first completion. Completed calls are numbered by
    invocation, and what is done of them is a run from 0 (``first_left``) and a few bits behind it (``done``).
    """

    def __init__(
        self,
        calls: Sequence[Call],
        step: Step,
        is_read: Callable[[Call], bool],
        reaches: Reaches,
        maximum_configurations: int,
        maximum_bytes: int,
        is_over: Callable[[], bool],
    ) -> None:
        self.step, self.reaches, self.is_over = step, reaches, is_over
        self.maximum_configurations, self.maximum_bytes = maximum_configurations, maximum_bytes
        in_time = sorted(calls, key=lambda call: call.invoke_ns)
        completed = [call for call in in_time if call.complete_ns is not None]
        self.calls = completed + [call for call in in_time if call.complete_ns is None]
        self.required = len(completed)
        self.reads = [is_read(call) for call in completed]
        entries: list[tuple[int, int, int]] = []
        for number, call in enumerate(self.calls):
            entries.append((call.invoke_ns, 0, number))
            if call.complete_ns is not None:
                entries.append((call.complete_ns, 1, number))
        # At one moment invocations come before completions: what only touches is concurrent, as precedence is strict.
        entries.sort()
        self.call_at = [-1, *(number for _, _, number in entries)]
        self.completes = [False, *(bool(kind) for _, kind, _ in entries)]
        self.invoked_at, self.completed_at = [0] * len(calls), [0] * len(calls)
        self.after, self.before = [0] * len(self.call_at), [0] * len(self.call_at)
        self.first_unknown, last, last_unknown = 0, 0, 0
        for place in range(1, len(self.call_at)):
            number = self.call_at[place]
            (self.completed_at if self.completes[place] else self.invoked_at)[number] = place
            if number < self.required:
                self.after[last], self.before[place], last = place, last, place
            else:
                # This list's head is a variable of its own; its members know no predecessor and are not taken out.
                if last_unknown:
                    self.after[last_unknown] = place
                else:
                    self.first_unknown = place
                last_unknown = place
        self.before[0] = last
        self.alike = self._earlier_alike()
        self.first_left, self.done, self.unknown_done, self.finished = 0, 0, 0, 0
        self.path: list[int] = []
        self.best: list[int] = []
        self.shared_with_best = 0
        self.stuck: tuple[int, ...] = ()
        # The number of configurations from which the search had to go back, since the path was last at its longest.
        self.stalled = 0
        self.configurations: set[int] = set()
        self.state_numbers: dict[Any, int] = {}
        self.bytes = 0
        self.steps = 0

    def _earlier_alike(self) -> dict[int, int]:
        """The unknown call before each that says the same, if there is one."""
        latest: dict[Any, int] = {}
        found = {}
        for number in range(self.required, len(self.calls)):
            what = (self.calls[number].function, repr(self.calls[number].argument))
            if what in latest:
                found[number] = latest[what]
            latest[what] = number
        return found

    def run(self, initial: State) -> SearchResult:
        try:
            verdict = self._search(initial)
        except OutOfBoundsError as over:
            self._note_stuck()
            best = tuple(self.calls[number].op for number in self.best)
            return SearchResult(UNDECIDED, len(self.configurations), best, self.stuck, over.bound)
        order = self.path if verdict == LINEARIZABLE else self.best
        stuck = () if verdict == LINEARIZABLE else self.stuck
        found = tuple(self.calls[number].op for number in order)
        return SearchResult(verdict, len(self.configurations), found, stuck)

    def _search(self, initial: State) -> VerdictName:
        self._absorb(initial)
        frames = [self._entered(initial)]
        while self.finished < self.required:
            state, found = self._advance(frames[-1])
            if found:
                frames.append(self._entered(state))
                continue
            self._note_stuck()
            left = frames.pop()
            self.bytes -= left.size
            if not frames:
                return VIOLATED
            self._return_to(frames[-1])
        return LINEARIZABLE

    def _entered(self, state: Any) -> _Frame:
        size = _FRAME_BYTES + _size(state)
        self.bytes += size
        return _Frame(self, state, size)

    def _advance(self, frame: _Frame) -> tuple[Any, bool]:
        """Go on to the next configuration that may follow ``frame``'s and was not visited; False without one."""
        while True:
            if not frame.pending and not self._find_pending(frame):
                return None, False
            following = frame.pending.pop()
            self._take(frame.number)
            self._absorb(following)
            # Behind the reads that could happen: configurations that differ in nothing else are one.
            if self._remember(following):
                lost = self._lost_read(following)
                if lost is None:
                    return following, True
                self._note_stuck((lost.op,))
            self._return_to(frame)

    def _find_pending(self, frame: _Frame) -> bool:
        """Find the next call that can happen in ``frame``: first the completed ones, then those of unknown outcome."""
        place, state = frame.place, frame.state
        is_unknown = place > 0 and self.call_at[place] >= self.required
        if not is_unknown:
            place = self.after[place]
            while place and not self.completes[place]:
                number = self.call_at[place]
                # Reads that can happen have happened when the configuration was entered.
                states = () if self.reads[number] else self._states_after(state, number)
                if states:
                    frame.place, frame.number, frame.pending = place, number, list(states)
                    return True
                place = self.after[place]
        limit = self._first_completion()
        place = self.after[frame.place] if is_unknown else self.first_unknown
        while place and place < limit:
            number = self.call_at[place]
            bit = 1 << number - self.required
            if not self.unknown_done & bit and self._is_first_of_its_kind(number):
                # The second reduction at the head of this module.
                states = [one for one in self._states_after(state, number) if one != state]
                if states:
                    frame.place, frame.number, frame.pending = place, number, states
                    return True
            place = self.after[place]
        return False

    def _is_first_of_its_kind(self, number: int) -> bool:
        earlier = self.alike.get(number)
        return earlier is None or bool(self.unknown_done >> earlier - self.required & 1)

    def _first_completion(self) -> int:
        place = self.after[0]
        while place and not self.completes[place]:
            place = self.after[place]
        return place or len(self.call_at)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps % _STEPS_BETWEEN_LOOKS_AT_THE_CLOCK == 0 and self.is_over():
            raise OutOfBoundsError("time")

    def _states_after(self, state: Any, number: int) -> Sequence[Any]:
        self._count_step()
        call = self.calls[number]
        return self.step(state, call.function, call.argument, call.result, number < self.required)

    def _absorb(self, state: Any) -> None:
        """Take every read that can happen now."""
        place = self.after[0]
        while place and not self.completes[place]:
            number = self.call_at[place]
            if self.reads[number] and self._states_after(state, number):
                self._take(number)
            place = self.after[place]

    def _lost_read(self, state: Any) -> Call | None:
        """Return one of the next reads if the model knows that it cannot have its result any more. Every configuration
        pays for this look, so only a few reads are looked at; the longer the search makes no progress, the more.
        """
        place, left = self.after[0], min(READS_AHEAD + self.stalled // 4, MAXIMUM_READS_AHEAD)
        before: list[Call] = []
        place_unknown = self.first_unknown
        while place and left:
            number = self.call_at[place]
            call = self.calls[number]
            if not self.completes[place]:
                if not self.reads[number]:
                    before.append(call)
            elif self.reads[number]:
                left -= 1
                # Operations of unknown outcome that began before the read may be what it saw: all are offered to it.
                while place_unknown and place_unknown < place:
                    unknown = self.call_at[place_unknown]
                    if not self.unknown_done >> unknown - self.required & 1:
                        before.append(self.calls[unknown])
                    place_unknown = self.after[place_unknown]
                self._count_step()
                if not self.reaches(state, call, before):
                    return call
            place = self.after[place]
        return None

    def _take(self, number: int) -> None:
        self.path.append(number)
        if number >= self.required:
            self.unknown_done |= 1 << number - self.required
            return
        self.finished += 1
        after, before = self.after, self.before
        # The completion first, so that the entry behind the invocation is one that is left.
        for place in (self.completed_at[number], self.invoked_at[number]):
            after[before[place]] = after[place]
            before[after[place]] = before[place]
        done = self.done | 1 << number - self.first_left
        # The bits set from the lowest on belong to the run: in a history with few operations at once `done` stays
        # short.
        run = (~done & (done + 1)).bit_length() - 1
        self.first_left += run
        self.done = done >> run

    def _return_to(self, frame: _Frame) -> None:
        self.stalled += 1
        path, after, before = self.path, self.after, self.before
        while len(path) > frame.depth:
            number = path.pop()
            if number < self.required:
                self.finished -= 1
                # The reverse of `_take`, call by call: each entry still has the neighbours of then.
                for place in (self.invoked_at[number], self.completed_at[number]):
                    after[before[place]] = place
                    before[after[place]] = place
        self.shared_with_best = min(self.shared_with_best, len(path))
        self.first_left, self.done, self.unknown_done = frame.first_left, frame.done, frame.unknown_done

    def _remember(self, state: Any) -> bool:
        """Remember a configuration; returns True if it is new. Raises :class:`OutOfBoundsError`."""
        place = self.state_numbers.get(state)
        if place is None:
            place = self.state_numbers[state] = len(self.state_numbers)
            self.bytes += _STATE_BYTES + _size(state)
        unknown = len(self.calls) - self.required
        # One integer instead of a tuple, as there may be millions: `done` is open to the left, all else has its width.
        mark = (self.done << unknown | self.unknown_done) << 64 | self.first_left << 32 | place
        if mark in self.configurations:
            return False
        self.configurations.add(mark)
        self.bytes += _CONFIGURATION_BYTES + (mark.bit_length() >> 3)
        if len(self.configurations) > self.maximum_configurations:
            raise OutOfBoundsError("configurations")
        if self.bytes > self.maximum_bytes:
            raise OutOfBoundsError("memory")
        return True

    def _note_stuck(self, lost: tuple[int, ...] = ()) -> None:
        """Keep the path if it is the longest so far, and what cannot follow it: ``lost``, or all that was tried."""
        if len(self.path) <= len(self.best) and self.best:
            return
        self.stalled = 0
        # Only what differs is copied: the path may have all operations, and this happens at each new length.
        self.best[self.shared_with_best :] = self.path[self.shared_with_best :]
        self.shared_with_best = len(self.best)
        tried = []
        place = self.after[0]
        while place and not self.completes[place]:
            tried.append(self.calls[self.call_at[place]].op)
            place = self.after[place]
        self.stuck = lost or tuple(tried)


def _size(state: Any) -> int:
    """Bytes of a state's own objects; the values in its containers belong to the calls."""
    size = sys.getsizeof(state)
    if isinstance(state, (tuple, frozenset)):
        size += sum(_size(one) for one in state if isinstance(one, (tuple, frozenset)))
    return size
