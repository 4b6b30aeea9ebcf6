"""The judge of what waits at a node, given more than may."""

from __future__ import annotations

import pytest

from broker.replica.inner_limits import InnerLimits
from simulation.journal import Violation
from simulation.judges.limits import check_limits
from tests.broker.harness import Group
from tests.simulation.stand_ins import stand_in


@pytest.mark.parametrize("kind", ["answer", "turn", "news"])
def test_more_than_may_wait_is_found(kind: str) -> None:
    group = Group.elected(1)
    node, limits = group.node("n0"), InnerLimits()
    process = stand_in(node=node, connections=lambda: ())
    host = stand_in(name="n0", process=process, settings=group.members["n0"].config, limits=limits)
    most = limits.forwarded_max if kind == "answer" else limits.unhandled_max
    places = getattr(node.waiting_places, kind)
    places.take("10.0.0.1", most)
    check_limits(host)
    places.take("10.0.0.2")
    with pytest.raises(Violation, match=f"{most + 1} .*, at most {most} may be"):
        check_limits(host)
