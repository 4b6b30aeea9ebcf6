"""The time of day that the nodes of a group agree on: delays, times of delivery and store times are judged by it.

Wall clocks are set by people and programs, on one machine at a time. If a leader's own counted, one that is set two
hours ahead would deliver at once what was to wait for an hour, and nobody would know. So the group has a time of its
own. It goes on with monotonic clocks, from leader to leader, and only approaches wall clocks:

- The leader's goes as its monotonic clock does, and nearer to its wall clock by `SLEW`, a hundredth of the time that
  passes. However far off that is: nothing that waits for an hour is early by more than 36 s.
- The leader says it with every append and heartbeat. A follower takes it from there, and goes on as its own monotonic
  clock does; so a new leader continues where the old one was, less what the last message took on its way. It is never
  ahead of what waits: an entry comes with the time, and is not stored later than that.
- Store times are this time, and are not taken for it: an entry that is sent to catch up is as old as it may be.
- What a leader says may be late, since a node or the network stood still, and is never early. So what it says sets a
  follower back by no more than clocks differ in their rates (`DRIFT`), with two exceptions. Its first word does: a node
  that was out of reach may come back with another time than the one that the group has by now, and the group's is the
  leader's. And so does a word when all have been behind for `LATE_NS`: then it is not the words that are late, but the
  leader's monotonic clock has stood still, as that of a machine does which is suspended.
- A node that starts does not know it. Whoever dials it, or answers when it asks for votes, says what time it is: the
  group's, if that node knows. Such a word may be late, too, so until a leader is heard the one that is furthest ahead
  counts.
- If no node knows, since all of them were down, the first leader asks the wall clocks: the middle one of those that it
  has heard of and its own, of two the earlier one. Each voter has said its own before it could vote. So of three
  machines one with a clock ahead does not set it. What stood while all were down is made up for at once.
- Leaders of release 0.1.0 go by their wall clocks, and say nothing: who follows one does not learn the time from it.

A wall clock that jumps by more than `JUMP_MS` against the monotonic one is told and counted, on whatever node. So is a
leader's time that differs by as much from what a follower knew: ahead at once, back when it is still so after
`LATE_NS`, as a word may have been late.
"""

from dataclasses import InitVar, dataclass, field
from typing import Final

from broker.requests.deadline import MS
from broker.statistics.events import EventKind, Events

SLEW: Final = 100
"""The part of the time that passes by which the group's time approaches the leader's wall clock: one in so many. NTP
itself slews twenty times slower; by this a clock that was an hour off is right again within five days.
"""

JUMP_MS: Final = 1000
"""NTP steps a clock from 128 ms on, and corrects what is less so slowly that nobody need know."""

DRIFT: Final = 8
"""A follower's time is ahead of its leader's by no more than one part in so many of what has passed since it heard it.

Elections are laid out for monotonic clocks that are each five percent wrong, and so is this; `SLEW` comes on top.
"""

LATE_NS: Final = 3_000_000_000
"""The longest that a leader's words may be behind because of their way alone: what a pause or a link without packets
has kept back has come by then, and TCP has sent again what was lost."""

_NEVER_NS: Final = -1


@dataclass(slots=True, eq=False)
class GroupClock:
    """One node's view of the group's time. Calls bring monotonic times (ns) that never fall, and wall clocks (ms)."""

    _now_ns: int
    first_wall_ms: InitVar[int]
    _events: Events
    _time_ns: int = field(init=False)
    """The time at `_now_ns`: the group's if `is_agreed`, else this node's wall clock."""
    is_agreed: bool = False
    """This node has heard or made the group's time since it started. Never false again, and true where one of the
    next three is."""
    leads: bool = False
    _is_hearsay: bool = False
    """No leader has said the group's time since this node started, but others have."""
    _has_heard_leader: bool = False
    """The leader that this node follows has said the time since this node follows it."""
    _heard_ns: int = field(init=False)
    """When this node last led, or was told the group's time; until then, when this clock was made."""
    _late_since_ns: int = _NEVER_NS
    """Since when all words of the leader were further behind than `DRIFT` allows."""
    _set_back_ns: int = 0
    """By how much the first word of a new leader, at `_set_back_at_ns`, has set this node back, less what later words
    have set it forward again; 0 once that was told, or made up for."""
    _set_back_at_ns: int = field(init=False)
    _taken_back_ns: int = 0
    """By how much late words of the leader have set this node back since the last word that was not late."""
    was_made_here: bool = False
    """This node was the first leader of a group in which no node that it had heard of knew the time."""
    _told: dict[str, int] = field(default_factory=dict)
    """By node, its wall clock less this node's monotonic one (ns), as they were when the node told it."""
    _wall_offset_ms: int = field(init=False)

    def __post_init__(self, first_wall_ms: int) -> None:
        self._time_ns = first_wall_ms * MS
        self._heard_ns = self._now_ns
        self._set_back_at_ns = self._now_ns
        self._wall_offset_ms = first_wall_ms - self._now_ns // MS

    def read(self, now_ns: int, wall_ms: int) -> int:
        """Returns the time (ms since 1970). While nobody leads and nothing was heard that is this node's wall clock."""
        # Every call of the node begins with this one: so all of it stands here, and nothing is asked twice.
        elapsed_ns = now_ns - self._now_ns
        self._now_ns = now_ns
        if not self.is_agreed:
            self._time_ns = wall_ms * MS
        elif not self.leads:
            self._time_ns += elapsed_ns
        else:
            time_ns = self._time_ns + elapsed_ns
            # It approaches the wall clock, from either side, by `SLEW` of the time that has passed.
            behind_ns = wall_ms * MS - time_ns
            most_ns = elapsed_ns // SLEW
            if behind_ns > most_ns:
                behind_ns = most_ns
            elif behind_ns < -most_ns:
                behind_ns = -most_ns
            self._time_ns = time_ns + behind_ns
        wall_offset_ms = wall_ms - now_ns // MS
        jump_ms = wall_offset_ms - self._wall_offset_ms
        if jump_ms:
            self._wall_offset_ms = wall_offset_ms
            if abs(jump_ms) > JUMP_MS + elapsed_ns // (SLEW * MS):
                self._events.warn(
                    EventKind.CLOCK_JUMP,
                    "ahead" if jump_ms > 0 else "back",
                    now_ns,
                    by_ms=abs(jump_ms),
                    group_time_ahead_ms=self.ahead_ms(wall_ms),
                )
        return self._time_ns // MS

    @property
    def time_ms(self) -> int:
        """The time (ms) as of the last call: the group's if `is_agreed`, which may have changed since `read`."""
        return self._time_ns // MS

    def wall_ms(self, now_ns: int) -> int:
        """Returns this node's own wall clock, which nothing but operators look at."""
        return self._wall_offset_ms + now_ns // MS

    def ahead_ms(self, wall_ms: int) -> int:
        """Returns how far the group's time is ahead of this node's wall clock."""
        return self._time_ns // MS - wall_ms

    def heard(self, time_ms: int, now_ns: int) -> None:
        """Takes the time (ms) that the leader has said which this node follows.

        A node that is ahead of that goes back: else what the leader has stored could be early here.
        """
        assert not self.leads, "a leader hears the time from nobody"
        self._advance(now_ns)
        moves_ns = time_ms * MS - self._time_ns
        if not self._has_heard_leader:
            # The first word of a leader counts whatever it says: the group's time is the leader's.
            self._late_since_ns = _NEVER_NS
            if self.is_agreed:
                self._first_word_moves(moves_ns, now_ns)
        else:
            least_ns = -((now_ns - self._heard_ns) // DRIFT)
            if moves_ns >= least_ns:
                # Ahead, or back by no more than clocks differ in their rates: the word is taken.
                self._late_since_ns = _NEVER_NS
                self._taken_back_ns = 0
            elif not self._have_long_been_late(now_ns):
                # Further back: the word was probably long on its way. What is given in to it is remembered.
                moves_ns = least_ns
                self._taken_back_ns -= moves_ns
            else:
                # All words have been behind for so long: the leader's own clock has stood still.
                self._late_since_ns = _NEVER_NS
                self._taken_back_ns = 0
                if moves_ns < -JUMP_MS * MS:
                    self._tell("the leader's time is back", moves_ns, now_ns)
            if self._set_back_ns:
                self._look_at_set_back(moves_ns, now_ns)
        self._time_ns += moves_ns
        self._heard_ns = now_ns
        self.is_agreed = self._has_heard_leader = True
        self._is_hearsay = False

    def _first_word_moves(self, moves_ns: int, now_ns: int) -> None:
        """Decides whether the first word of a leader is a jump: it moves the time that this node knew by `moves_ns`.

        A jump ahead is told at once. One back is only kept in mind, as the word may have been late.
        """
        # Against the time that this node would have if no word that may have been late had taken anything back.
        differs_ns = moves_ns - self._set_back_ns - self._taken_back_ns
        # By so much a leader's time may have been slewed since this node heard one.
        most_ns = JUMP_MS * MS + (now_ns - self._heard_ns) // SLEW
        self._taken_back_ns = 0
        if differs_ns < -most_ns:
            if not self._set_back_ns:
                self._set_back_at_ns = now_ns
            self._set_back_ns = -differs_ns
            return
        self._set_back_ns = 0
        if differs_ns > most_ns:
            self._tell("a new leader's time is ahead", differs_ns, now_ns)

    def _look_at_set_back(self, moves_ns: int, now_ns: int) -> None:
        """Takes the move (ns) by a later word on a node that a leader's first word has set back. If later words make up
        for it the first one was late. If they have not within `LATE_NS` it was a jump back, and that is told."""
        self._set_back_ns -= max(0, moves_ns)
        if self._set_back_ns <= JUMP_MS * MS:
            self._set_back_ns = 0
        elif now_ns - self._set_back_at_ns >= LATE_NS:
            self._tell_of_set_back(now_ns)

    def _have_long_been_late(self, now_ns: int) -> bool:
        """Notes one more time that is behind; returns True once they have been for `LATE_NS`, without a longer silence.

        Behind such a silence, what arrives first may all have been sent before it.
        """
        if self._late_since_ns == _NEVER_NS or now_ns - self._heard_ns >= LATE_NS:
            self._late_since_ns = now_ns
        return now_ns - self._late_since_ns >= LATE_NS

    def _tell_of_set_back(self, now_ns: int) -> None:
        self._tell("a new leader's time is back", self._set_back_ns, now_ns)
        self._set_back_ns = 0

    def _tell(self, reason: str, moves_ns: int, now_ns: int) -> None:
        self._events.warn(EventKind.CLOCK_JUMP, reason, now_ns, by_ms=abs(moves_ns) // MS)

    def told(self, node: str, time_ms: int, now_ns: int, *, is_agreed: bool) -> None:
        """Takes what `node` says the time (ms) is: the group's if `is_agreed`, else its wall clock. It has dialled this
        one, or answers when this one asks for its vote."""
        if not is_agreed:
            # Kept as a distance, which holds while clocks go on: it may be asked for much later (`lead`).
            self._told[node] = time_ms * MS - now_ns
        # Of words that may all be late the one that is furthest ahead is nearest to the group's time.
        elif not self.is_agreed or (
            self._is_hearsay and time_ms * MS > self._time_ns + now_ns - self._now_ns
        ):
            self._now_ns = self._heard_ns = now_ns
            self._time_ns = time_ms * MS
            self.is_agreed = self._is_hearsay = True

    def lead(self, now_ns: int) -> int:
        """Begins to make the group's time, as this node leads from now on; returns it (ms)."""
        self._advance(now_ns)
        self.leads = True
        self._is_hearsay = False
        if self._set_back_ns:
            self._tell_of_set_back(now_ns)  # the group's time is back by that
        if self.is_agreed:
            return self._time_ns // MS
        clocks = sorted([self._time_ns, *(offset_ns + now_ns for offset_ns in self._told.values())])
        spread_ms = (clocks[-1] - clocks[0]) // MS
        # The middle one, of two the earlier: no single clock that is ahead sets the group's time.
        self._time_ns = clocks[(len(clocks) - 1) // 2]
        self.is_agreed = self.was_made_here = True
        if spread_ms > JUMP_MS:
            self._events.warn(
                EventKind.CLOCK_JUMP, "wall clocks of the group differ", now_ns, by_ms=spread_ms
            )
        return self._time_ns // MS

    def follow(self, now_ns: int) -> None:
        """Makes the group's time no more: this node does not lead, or follows another leader or term from now on."""
        # The first word of the next leader counts whatever it says.
        self._has_heard_leader = False
        if self.leads:
            self._advance(now_ns)
            self.leads = False
            self._heard_ns = now_ns

    def _advance(self, now_ns: int) -> None:
        self._time_ns += now_ns - self._now_ns
        self._now_ns = now_ns
