"""The half messages of a source that still wait for a decision (`TransactionalMessageServiceImpl`).

RocketMQ notes each decision in an operation message, which names half messages by their queue offsets, and moves the
consumer offset of CID_RMQ_SYS_TRANS past half messages that are done. When it asks a producer about a half message, it
stores a second copy behind the others, and the first copy is done. So of several copies of one transaction only the
last can wait, and a decision about any of them is one about all. Where that consumer offset was written before the copy
was made, the copies name each other.
"""

from broker.state.open_transactions import Transactions
from broker.state.transaction_records import CHECK_TIMES, HALF_QUEUE_OFFSET, decision_of
from log.formats.properties import UNIQ_KEY, get_property


class HalfMessages:
    """Halves from `begin` on, what decides them, and which of them are open."""

    def __init__(self, begin: int) -> None:
        """`begin` is the consumer offset of CID_RMQ_SYS_TRANS: half messages before it are done."""
        self.begin = begin
        self._end = 0
        self._times: dict[int, int] = {}
        """By half message that is not known to be done, how often its producer was asked."""
        self._originals: dict[int, int] = {}
        """By a copy, the half message that it is a copy of, where it says so."""
        self._keys: dict[int, bytes] = {}
        """By half message, its transaction."""
        self._last_of: dict[bytes, int] = {}
        """By transaction, its last copy."""
        self._decided: set[int] = set()

    def add_half(self, offset: int, properties: bytes) -> None:
        """Takes a half message, in the order of the log."""
        self._end = offset + 1
        if offset < self.begin:
            return
        key = get_property(properties, UNIQ_KEY)
        if key is not None:
            self._times.pop(self._last_of.get(key, -1), None)
            self._last_of[key] = offset
            self._keys[offset] = key
        self._times[offset] = _number(get_property(properties, CHECK_TIMES)) or 0
        original = _number(get_property(properties, HALF_QUEUE_OFFSET))
        if original is not None:
            self._originals[offset] = original

    def add_decision(self, record: memoryview) -> None:
        """Takes an operation message."""
        decision = decision_of(record)
        if decision is not None:
            self._decided.update(offset for offset in decision.half_offsets if offset >= 0)

    def open(self) -> dict[int, int]:
        """Returns the half messages that wait, with the number of questions that were asked about each."""
        decided = self._decided
        keys = {key for offset, key in self._keys.items() if offset in decided}
        return {
            offset: times
            for offset, times in self._times.items()
            if offset >= self.begin
            and offset not in decided
            and self._originals.get(offset) not in decided
            and self._keys.get(offset) not in keys
        }

    def state(self) -> Transactions:
        """Returns them as Trivet keeps them."""
        return Transactions(horizon=self._end, times_checked=self.open())


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= 18 else None
