"""Writers that do all their work again: portions of messages, each stored once (broker/client/producing/portion.py).

Two processes run the same query, and neither knows what the other has sent. What a portion consists of is fixed when it
comes up, as by a checkpoint that both read; in which order it is sent is not. Attempts are left in the middle, made
twice at once, made again after a pause that is longer than a leader lives, and also when the portion was done long ago.
Some rows of a portion are equal, and some wait for a second before anybody sees them.

A message is stored as often as its portion has it, at most, and exactly so often once somebody was told that the
portion is done. Only when the log's head was deleted while a portion was half written nobody can tell any more: then
the query begins anew, under another name.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from broker.client.admin import AdminClient
from broker.client.errors import ClientError, PortionUndecidable
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.state.commands import BeginPortion, Command, EndPortion, ForgetWriters
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.randomness import Random
from simulation.workload.context import Context, Invariant

TOPIC: Final = "written"
_PARTITIONS: Final = 2
_ROWS_MAX: Final = 12
_PAUSE_S: Final = 0.5
_LONG_PAUSE_S: Final = 5.0
_LIFE_S: Final = (0.02, 0.2, 20.0)
"""An attempt is left after one of these."""


@dataclass(frozen=True, slots=True)
class _Row:
    body: bytes
    waits: bool
    """The message is hidden for a delay level first."""


@dataclass(slots=True)
class _Written:
    """A portion: its rows, and how often the group has a message of each kind."""

    writer: str
    number: int
    rows: tuple[_Row, ...]
    is_judged: bool = True
    """Until its writer is forgotten: what is written again after that is a new portion."""
    stored: Counter[bytes] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return f"{self.writer}:{self.number}"

    def check(self, *, exactly: bool) -> None:
        """Judges what is stored. Raises Violation."""
        if not self.is_judged:
            return
        wanted = Counter(row.body for row in self.rows)
        at_once = Counter(row.body for row in self.rows if not row.waits)
        if self.stored - wanted:
            raise Violation(
                "a portion is stored once", "group", f"{self.name}: {self.stored - wanted} too many"
            )
        if exactly and at_once - self.stored:
            raise Violation(
                "what is done is stored", "clients", f"{self.name}: {at_once - self.stored} missing"
            )


class Portions(Invariant):
    """The query and its portions, as the checkpoint has them that both processes read."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._portions: dict[str, _Written] = {}
        self._heard: dict[str, tuple[int, int]] = {}
        """By writer, the number of its last portion and the group's time (ms) at which it was heard of last."""
        self._query = 0
        self._number = -1
        self.current: tuple[_Written, ...] = ()
        """The portions of one number, one for each partition."""
        self.is_done: dict[str, None] = {}
        """The names of the portions that somebody was told to be done."""

    def proceed(self, random: Random) -> None:
        """Makes the next portions, if all of the current number are done, or there are none."""
        if any(portion.name not in self.is_done for portion in self.current):
            return
        self._number += 1
        self.current = tuple(
            _Written(f"query{self._query}/{partition}", self._number, _rows(random))
            for partition in range(_PARTITIONS)
        )
        self._portions |= {portion.name: portion for portion in self.current}

    def give_up(self, portion: _Written, *, was_done: bool) -> None:
        """A portion was begun too long ago: the query begins anew. Judges that it was not done before it was begun.

        Raises Violation.
        """
        if was_done and portion.is_judged:
            raise Violation("what is done stays done", "group", f"{portion.name} is undecidable")
        if portion in self.current and portion.name not in self.is_done:
            self._begin_anew()
        self.context.journal.did("portion undecidable")

    def _begin_anew(self) -> None:
        self._query += 1
        self._number = -1
        self.current = ()

    def done(self, portion: _Written) -> None:
        """Judges the answer that a portion is done."""
        self.is_done[portion.name] = None
        portion.check(exactly=True)
        self.context.journal.did("portion done")

    def applied(self, command: Command, now_ns: int) -> None:
        """Notes which writers the group has forgotten: only those that it had not heard of for as long as it says."""
        match command:
            case BeginPortion(_, writer, number, _, group_ms):
                known = self._heard.get(writer, (number, 0))
                self._heard[writer] = max(number, known[0]), group_ms
            case EndPortion(_, writer, number, group_ms) if self._heard.get(writer, (-1, 0))[0] == number:
                self._heard[writer] = number, group_ms
            case ForgetWriters(writers, before_ms):
                for _, writer in writers:
                    if self._heard.get(writer, (0, before_ms))[1] < before_ms:
                        del self._heard[writer]
                        self._forgotten(writer)
            case _:
                pass

    def _forgotten(self, writer: str) -> None:
        self.context.journal.did("writer forgotten")
        for portion in self._portions.values():
            if portion.writer == writer:
                portion.is_judged = False
        if any(not portion.is_judged for portion in self.current):
            self._begin_anew()

    def committed(self, message: CommittedMessage) -> None:
        """Checks that a message is one of its portion, and not one too many. Raises Violation."""
        if message.record.topic != TOPIC:
            return
        portion = self._portions.get(message.property(b"KEYS") or "")
        if portion is None:
            raise Violation("what is written is stored", "group", f"{message.record} is of no portion")
        if not portion.is_judged:
            self.context.judge.may_come_again[message.property(b"UNIQ_KEY") or ""] = None
        portion.stored[message.record.body] += 1
        portion.check(exactly=False)


def _rows(random: Random) -> tuple[_Row, ...]:
    kinds = [b"row %d" % number for number in range(random.randrange(1, _ROWS_MAX))]
    chosen = random.choices(kinds, k=random.randrange(1, _ROWS_MAX))
    waiting = random.choice(kinds) if random.random() < 0.3 else None
    return tuple(_Row(body, body == waiting) for body in chosen)


async def write(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Makes attempts at the current portions, and sometimes at earlier ones."""
    invariant = context.invariant(Portions)
    random = runtime.random
    async with (
        AdminClient(context.name_servers, runtime=runtime) as admin,
        Producer(
            context.name_servers, group="writers", send_timeout_s=6.0, trace=writer, runtime=runtime
        ) as producer,
    ):
        while True:
            try:
                await admin.create_topic(TOPIC, queues=2)
                break
            except ClientError:
                await runtime.sleep(0.3)

        async def attempt(written: _Written) -> None:
            # Asked before the attempt begins: another process may end the portion meanwhile.
            was_done = written.name in invariant.is_done
            # A row is known by what it is, not by its place.
            rows = random.sample(written.rows, len(written.rows))
            portion = producer.portion(written.writer, written.number, in_flight=random.choice((1, 4, 16)))
            with runtime.move_on_after(random.choice(_LIFE_S)):
                try:
                    await portion.send(
                        (
                            Message(TOPIC, row.body, keys=[written.name], delay_level=1 if row.waits else 0),
                            row.body,
                        )
                        for row in rows
                    )
                    await portion.end()
                except PortionUndecidable:
                    invariant.give_up(written, was_done=was_done)
                except ClientError:
                    context.journal.did("attempt at a portion failed")
                else:
                    context.journal.did("message of a portion skipped", portion.skipped)
                    invariant.done(written)

        while True:
            await runtime.sleep(
                random.expovariate(1 / (_PAUSE_S if random.random() < 0.9 else _LONG_PAUSE_S))
            )
            if context.load_stopped:
                continue
            if random.random() < 0.8:
                invariant.proceed(random)
            async with runtime.task_group() as tasks:
                for written in invariant.current:
                    for _ in range(random.choice((1, 1, 2))):
                        tasks.start_soon(attempt, written)
