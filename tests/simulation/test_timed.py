"""The judge of messages for a time of their own."""

from __future__ import annotations

import pytest

from broker.state.topic_rules import TIMER_TOPIC
from simulation.journal import Violation
from simulation.judges.group_time import BELIEVED_NS
from simulation.workload.timed import TOPIC, Timers
from tests.simulation import stand_ins

S = 1_000_000_000
DUE_MS = 1_700_000_000_000


def comes(at_ns: int, suspensions: list[tuple[int, int]]) -> None:
    """A message that is made at 10 s and is to wait for 2 s comes, while machines were suspended."""
    context = stand_ins.context(journal=stand_ins.journal(suspensions=suspensions))
    timers = Timers(context)
    timers.wanted["a"] = 10 * S, 2 * S, 0
    for topic, time_ns in ((TIMER_TOPIC, 10 * S), (TOPIC, at_ns)):
        record = stand_ins.stand_in(topic=topic, store_timestamp=DUE_MS)
        properties = {b"KEYS": "a", b"TIMER_OUT_MS": str(DUE_MS), b"REAL_TOPIC": TOPIC}
        timers.committed(stand_ins.stand_in(record=record, property=properties.get, time_ns=time_ns))


def test_a_delay_may_be_cut_short_by_what_clocks_go_wrong() -> None:
    comes(10 * S + 1_870_000_000, [])
    with pytest.raises(Violation, match=r"there 1\.800 s after it was made, not 2\.000 s"):
        comes(10 * S + 1_800_000_000, [])


def test_a_delay_is_shorter_by_a_suspension_that_was_not_believed_when_it_began() -> None:
    """Seed 910005: the leader's clock had stood still, and the one that came after it had gone on."""
    for ended_ns in (9 * S, 10 * S + S // 2, 10 * S - BELIEVED_NS + 1):
        comes(10 * S + 1_400_000_000, [(ended_ns, S // 2)])
    with pytest.raises(Violation):
        comes(10 * S + 1_300_000_000, [(9 * S, S // 2)])
    with pytest.raises(Violation):
        comes(10 * S + 1_400_000_000, [(10 * S - BELIEVED_NS, S // 2)])
