"""Messages in transactions: committed, rolled back, or left for the broker to ask about.

What is to become of each transaction is drawn before it begins and written down in the invariant, which plays the
application's database: whoever is asked finds it there, also after the process that began it is gone.

The transactors want one outcome for ever. The waverers (waver.py) come to want another one, or know none for long; then
the group goes by the first decision that it takes, and whoever asks for another one is told so.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from broker.client.errors import BrokerError, ClientError
from broker.client.message import Message, MessageView, SendResult
from broker.client.producing.transactions import Decision, TransactionalProducer
from broker.client.transport.runtime import Runtime
from broker.remoting.codes import ResponseCode
from broker.replica.replica import Replica
from broker.state.commands import CheckTransactions, Command, Several
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC
from broker.trace import TraceWriter
from log.formats.record import SYS_FLAG_COMMIT, SYS_FLAG_TRANSACTION_MASK
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.machines.broker_host import BrokerHost
from simulation.workload.context import Context, Invariant

TOPIC: Final = "transfers"
CHECKS_MAX: Final = 15
"""The setting of most simulated brokers: so many questions before a transaction is given up."""
CHECK_INTERVAL_MS: Final = 1000

_LANES = 2
_LEFT_TO_CHECK = 0.4
_UNKNOWN_AT_FIRST = 0.3
_DECIDED: Final = {Decision.COMMIT: "committed", Decision.ROLLBACK: "rolled back"}
"""How the log has decided, by what was asked for."""


class Transactions(Invariant):
    """Each transaction is decided once, as somebody wanted; none is visible before that, none is forgotten.

    What somebody was told of a decision is what the log has, at that moment and so for ever.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._number = 0
        self._wanted: dict[str, list[Decision]] = {}
        """By name: what was wanted until now, and last what is."""
        self._halves: list[CommittedMessage] = []
        """The half messages by their offset."""
        self._decided: dict[int, str] = {}
        """Half offset -> how it was decided, as the log says."""
        self._listed: dict[int, None] = {}
        """The half offsets with an operation message."""
        self._questions: dict[int, int] = {}
        self._committed: dict[str, None] = {}

    # ---- what the application knows ------------------------------------------------------------------

    def new(self, fate: Decision) -> str:
        """Notes a transaction and what is to become of it; returns its name."""
        self._number += 1
        name = f"transfer{self._number}"
        self._wanted[name] = [fate]
        return name

    def want(self, name: str, fate: Decision) -> None:
        """Notes that from now on something else is to become of a transaction."""
        self._wanted[name].append(fate)

    def fate(self, name: str) -> Decision:
        """Returns what is to become of a transaction; UNKNOWN if that is open still."""
        return self._wanted[name][-1]

    def is_decided(self, half_offset: int) -> bool:
        """Tells if the log says what has become of a transaction."""
        return half_offset in self._decided

    def asked(self, message: MessageView) -> None:
        """Judges a question to a producer: it has been asked as many times as the question says. Raises Violation."""
        name = message.keys[0]
        times = message.properties.get("TRANSACTION_CHECK_TIMES", "")
        counted = max(
            self._questions.get(half.record.queue_offset, 0)
            for half in self._halves
            if half.property(b"KEYS") == name
        )
        if not (times.isdigit() and 1 <= int(times) <= counted):
            raise Violation(
                "questions are counted", "clients", f"{name}: asked {counted} times, it says {times!r}"
            )
        self.context.journal.did("transaction asked about")

    def acknowledged(self, half_offset: int, decision: Decision) -> None:
        """Judges the answer that a transaction is decided as was asked: so it is in the log. Raises Violation."""
        decided, asked = self._decided.get(half_offset), _DECIDED[decision]
        if decided != asked:
            raise Violation(
                "acknowledged decisions are committed",
                "clients",
                f"{self._name(half_offset)}: told that it was {asked}, by the log it is {decided or 'open'}",
            )

    def refused(self, half_offset: int, decision: Decision, remark: str) -> None:
        """Judges the answer that a transaction is decided otherwise: it is, and as the answer says.

        Raises Violation.
        """
        decided = self._decided.get(half_offset)
        if decided is None or decided == _DECIDED[decision] or f"it was {decided}" not in remark:
            raise Violation(
                "refused decisions are decided otherwise",
                "clients",
                f"{self._name(half_offset)}, by the log {decided or 'open'}, was not {_DECIDED[decision]}: {remark}",
            )

    def _name(self, half_offset: int) -> str:
        return self._halves[half_offset].property(b"KEYS") or ""

    # ---- what the group commits ----------------------------------------------------------------------

    def committed(self, message: CommittedMessage) -> None:
        """Follows half messages and decisions, and judges what is delivered."""
        match message.record.topic:
            case topic if topic == HALF_TOPIC:
                self._halves.append(message)
            case topic if topic == HALF_OPERATIONS_TOPIC:
                for item in message.record.body.split(b","):
                    if item:
                        self._operation(int(item))
            case topic if topic == CHECK_EXHAUSTED_TOPIC:
                self._given_up(message)
            case topic if topic == TOPIC:
                self._delivered(message)

    def applied(self, command: Command, now_ns: int) -> None:
        """Counts questions."""
        for single in command.commands if isinstance(command, Several) else (command,):
            if isinstance(single, CheckTransactions):
                for half_offset in single.half_offsets:
                    self._questions[half_offset] = self._questions.get(half_offset, 0) + 1

    def _operation(self, half_offset: int) -> None:
        if half_offset in self._listed:
            raise Violation("one operation message", "group", f"half message {half_offset} is listed twice")
        self._listed[half_offset] = None
        # A commit, or the end of the questions, was in the log before; without one this entry is the rollback itself.
        if half_offset in self._decided:
            return
        half = self._decide(half_offset, "rolled back")
        name = half.property(b"KEYS") or ""
        # A half message that was deleted with the log's head cannot be committed any more.
        if Decision.ROLLBACK not in self._wanted[name] and not self.context.model.may_be_gone(half):
            raise Violation("decided as it should be", "group", f"{name} was rolled back")

    def _given_up(self, message: CommittedMessage) -> None:
        half = self._decide(int(message.property(b"TRAN_PREPARED_QUEUE_OFFSET") or -1), "given up")
        asked = self._questions.get(half.record.queue_offset, 0)
        # One that is as old as what retention takes is given up, too.
        is_old = message.record.store_timestamp - half.record.store_timestamp > self.context.facts.kept_ms
        is_early = asked < self.context.facts.checks_max and not is_old
        if is_early or message.property(b"TRANSACTION_CHECK_TIMES") != str(asked):
            raise Violation(
                "given up after all questions",
                "group",
                f"{message.property(b'KEYS')}: asked {asked} times, "
                f"it says {message.property(b'TRANSACTION_CHECK_TIMES')}",
            )
        self.context.journal.did("transaction given up")

    def _delivered(self, message: CommittedMessage) -> None:
        name = message.property(b"KEYS") or ""
        record = message.record
        if (
            message.property(b"TRAN_MSG") is not None
            or record.sys_flag & SYS_FLAG_TRANSACTION_MASK != SYS_FLAG_COMMIT
        ):
            raise Violation("no half message visible", "group", f"{name} in {TOPIC}/{record.queue_id}")
        if name in self._committed:
            raise Violation("committed once", "group", f"{name} is there twice")
        if Decision.COMMIT not in self._wanted[name]:
            raise Violation("decided as it should be", "group", f"{name} was committed")
        half = self._decide(int(message.property(b"TRAN_PREPARED_QUEUE_OFFSET") or -1), "committed")
        if half.property(b"KEYS") != name or half.record.body != record.body:
            raise Violation("decided as it should be", "group", f"{name} is not its half message's message")
        self._committed[name] = None

    def _decide(self, half_offset: int, how: str) -> CommittedMessage:
        if not 0 <= half_offset < len(self._halves):
            raise Violation("decided as it should be", "group", f"{how}: no half message {half_offset}")
        before = self._decided.setdefault(half_offset, how)
        if before is not how:
            raise Violation("decided once", "group", f"half message {half_offset}: {before}, then {how}")
        return self._halves[half_offset]

    def waiting(self) -> Iterator[CommittedMessage]:
        """Yields the half messages that are undecided."""
        return (half for offset, half in enumerate(self._halves) if offset not in self._decided)

    # ---- at the end ----------------------------------------------------------------------------------

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that the node has derived the same state from the log. Raises Violation."""
        state = replica.metadata.transactions
        opened = sorted(state.open_before(len(self._halves)))
        expected = [offset for offset in range(len(self._halves)) if offset not in self._decided]
        owed = [offset for offset in self._decided if offset not in self._listed]
        if opened != expected or sorted(state.operations_owed) != sorted(owed):
            raise Violation(
                "open transactions are known",
                host.name,
                f"open {opened}, owed {list(state.operations_owed)}; by the log {expected} and {owed}",
            )
        for offset in expected:
            if state.times(offset) != self._questions.get(offset, 0):
                raise Violation("questions are counted", host.name, f"half message {offset}")

    def check_end(self) -> None:
        """Checks that nothing is undecided: producers live, and know all answers since the load stopped.

        Raises Violation.
        """
        for offset, half in enumerate(self._halves):
            if offset not in self._decided:
                raise Violation(
                    "undecided ones are asked about",
                    "group",
                    f"{half.property(b'KEYS')}, half message {offset}, asked {self._questions.get(offset, 0)} times",
                )


def answers(context: Context, runtime: Runtime) -> Callable[[MessageView], Awaitable[Decision]]:
    """Returns what a producer says that is asked about a transaction."""
    invariant, random = context.invariant(Transactions), runtime.random

    async def check(message: MessageView) -> Decision:
        try:
            invariant.asked(message)
        except Violation as violation:
            context.journal.found(violation)  # the client takes it for the application's mistake, and goes on
        if random.random() < _UNKNOWN_AT_FIRST and not context.load_stopped:
            return Decision.UNKNOWN
        name = message.keys[0]
        if context.load_stopped and invariant.fate(name) is Decision.UNKNOWN:
            invariant.want(name, Decision.ROLLBACK)  # who was to decide may be gone
        return invariant.fate(name)

    return check


async def decide(
    context: Context, producer: TransactionalProducer, half: SendResult, decision: Decision
) -> None:
    """Asks for a decision, and judges the answer. Raises ClientError if there is none, and Violation."""
    invariant = context.invariant(Transactions)
    try:
        await producer.decide(half, decision)
    except BrokerError as error:
        if error.code != ResponseCode.TRANSACTION_FAILED:
            raise
        invariant.refused(half.queue_offset, decision, str(error.remark))
        context.journal.did("transaction decided otherwise")
    else:
        invariant.acknowledged(half.queue_offset, decision)
        context.journal.did("transaction decided")


async def transact(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Begins transactions for ever, from several lanes, and answers what the broker asks."""
    invariant = context.invariant(Transactions)
    random = runtime.random

    async with TransactionalProducer(
        context.name_servers, group="transactors", check=answers(context, runtime), runtime=runtime
    ) as producer:

        async def lane() -> None:
            while True:
                await context.pause(runtime, 1.0)
                fate = Decision.COMMIT if random.random() < 0.7 else Decision.ROLLBACK
                name = invariant.new(fate)
                try:
                    transaction = await producer.begin(
                        Message(TOPIC, random.randbytes(random.choice((10, 100, 700))), keys=[name])
                    )
                    if random.random() < _LEFT_TO_CHECK:
                        continue
                    await runtime.sleep(random.expovariate(1 / 0.2))
                    await decide(context, producer, transaction.half, fate)
                except BrokerError:
                    pass
                except ClientError:
                    await runtime.sleep(0.05)

        async with runtime.task_group() as group:
            for _ in range(_LANES):
                group.start_soon(lane)
