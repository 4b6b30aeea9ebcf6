"""Traces of simulated runs with a planted mistake, in which clients or replicas recorded what came of it.

The simulator's own judges stop a run at the first broken invariant, which is mostly before any client could see it.
Here they are silenced, so that the run goes on, and the rules in plain Python (cheap, no Spark) say what the traces
show. The seed that shows it may change with the code, so the next ones are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

from broker.trace import (
    TRACE_SUFFIX,
    CommitAdvanced,
    EntriesAppended,
    LogTruncated,
    NodeStarted,
    PrefixDigest,
    RoleChanged,
    TraceHeader,
    read_trace,
)
from simulation.journal import Journal, Violation
from simulation.judges.beliefs import Beliefs
from simulation.judges.client_judge import ClientJudge
from simulation.judges.group_model import GroupModel
from simulation.judges.monitor import Monitor
from simulation.plans.plan import Fault, Plan
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload.names import TOPIC
from simulation.world.running import Result, run_plan
from spark_analysis.checking.plain import check_traces
from spark_analysis.checking.replicas.reference import ReplicaEvent, replica_findings
from tests.simulation.planted_bugs import PLANTED, plan_of

SEEDS: Final = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A mistake of `PLANTED`, the kinds of findings that its traces must show, and where to begin to look.

    ``rivals``: nodes campaign at the same time, and nothing else is done to them.
    """

    mistake: str
    kinds: tuple[str, ...]
    first_seed: int = 0
    rivals: bool = False

    @property
    def name(self) -> str:
        """A directory's."""
        return f"{self.mistake.replace(' ', '-')}-{self.first_seed}"


def write_planted(case: Case, directory: Path) -> Path:
    """The traces of the first seed in which the mistake shows all that it must; their directory."""
    wanted = set(case.kinds)
    shown: dict[int, set[str]] = {}
    for seed in range(case.first_seed, case.first_seed + SEEDS):
        result = _run_unjudged(case.mistake, _plan(case, seed))
        shown[seed] = kinds_shown(result.traces)
        if shown[seed] >= wanted:
            return write_traces(result, directory / case.name)
    pytest.fail(f"{case.mistake!r}: of {wanted} the seeds show {shown}")


def write_traces(result: Result, directory: Path) -> Path:
    """Writes the traces of a run as `trivet simulate --out` does."""
    directory.mkdir(parents=True)
    for name, data in result.traces.items():
        (directory / f"{name}{TRACE_SUFFIX}").write_bytes(data)
    return directory


def kinds_shown(traces: Mapping[str, bytes]) -> set[str]:
    """Returns the kinds that the rules in plain Python find, in the topic whose queues only traced clients write to."""
    plain = check_traces(traces, is_judged=lambda key: key.startswith(f"{TOPIC}/"))
    return plain.counts.keys() | {one.kind for one in replica_findings([*_replica_events(traces)])}


def _replica_events(traces: Mapping[str, bytes]) -> Iterator[ReplicaEvent]:
    for content in traces.values():
        node = ""
        for event in read_trace(BytesIO(content)):
            match event:
                case TraceHeader(process=node):
                    pass
                case NodeStarted(term=term, last_index=last):
                    yield ReplicaEvent(node, "start", term=term, last_index=last)
                case RoleChanged(role=role, term=term, last_index=last, last_term=last_term):
                    yield ReplicaEvent(
                        node, "role", term=term, role=role, last_index=last, last_term=last_term
                    )
                case EntriesAppended(first_index=first, last_index=last, term=term, digest=digest):
                    yield ReplicaEvent(node, "append", term, None, first, last, digest)
                case LogTruncated(last_index=last):
                    yield ReplicaEvent(node, "truncate", last_index=last)
                case CommitAdvanced(index=last, term=term):
                    yield ReplicaEvent(node, "commit", term=term, last_index=last)
                case PrefixDigest(index=last, digest=digest):
                    yield ReplicaEvent(node, "digest", last_index=last, digest=digest)


def _plan(case: Case, seed: int) -> Plan:
    plan = plan_of(PLANTED[case.mistake], seed)
    if not case.rivals:
        return plan
    faults = (
        Fault(5 * SECOND + number * SECOND, "rivals", number, 400 * MILLISECOND, 0.5) for number in range(12)
    )
    return replace(plan, faults=tuple(faults))


def _run_unjudged(mistake: str, plan: Plan) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        for judge in (Monitor, GroupModel, ClientJudge, Beliefs):
            for method, function in list(vars(judge).items()):
                if callable(function) and not method.startswith("__"):
                    patch.setattr(judge, method, _silenced(function))
        PLANTED[mistake].patch(patch)
        patch.setattr(Journal, "found", lambda journal, violation: None)
        return run_plan(plan, keep_traces=True)


def _silenced(function: Callable[..., Any]) -> Callable[..., Any]:
    def silenced(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Violation:
            return None

    return silenced
