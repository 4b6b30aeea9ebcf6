"""Results as text: one line for a run that holds, a page for a finding."""

from simulation.findings.transcript import last_events
from simulation.plans.plan import Plan
from simulation.scheduler import SECOND
from simulation.world.running import Result


def summary_line(result: Result, cpu_seconds: float) -> str:
    """Describes a run in one line."""
    simulated = result.simulated_ns / 1e9
    # With async flush a majority that loses its power may lose what was acknowledged: no finding, but worth a word.
    verdict = "holds"
    if result.violation is not None:
        verdict = f"VIOLATED: {result.violation.invariant}"
    elif result.data_loss is not None:
        verdict = f"holds until power failures took data, as async flush may ({result.data_loss.describe()})"
    return (
        f"seed {result.plan.seed}: {verdict}; {simulated:.0f} s simulated, {simulated / max(cpu_seconds, 1e-9):.0f} "
        f"per second; {result.committed} entries, {result.acknowledged} acknowledged, {result.read} read, "
        f"{result.elections} elections, {sum(result.fault_counts.values())} faults"
    )


def describe_plan(plan: Plan) -> list[str]:
    """Describes a plan: its settings, and its faults, one a line."""
    load = f"{_count(plan.producers, 'producer')}, {_count(plan.queues, 'queue')}"
    settings = (
        f"{plan.nodes} nodes, {plan.flush} flush, data files of {plan.data_file_bytes // 1024} KiB, {load}; "
        f"faults end at {plan.calm_ns / SECOND:.0f} s, the run at {plan.end_ns / SECOND:.0f} s"
        + (", or as soon as all is well" if plan.ends_early else "")
    )
    lines = [settings, f"actors: {', '.join(plan.actors)}"]
    lines += [
        f"{fork.time_ns / 1e9:11.6f}  another future, {fork.seed}, behind event {fork.event}"
        for fork in plan.forks
    ]
    lines += [
        f"{fault.time_ns / 1e9:11.6f}  {fault.kind} (target {fault.target}, {fault.duration_ns / 1e9:.3f} s, "
        f"amount {fault.amount:.3f})"
        for fault in plan.faults
    ]
    return lines


def describe_size(plan: Plan) -> str:
    """Says how large a plan is, for comparing it with a smaller one."""
    kinds = len({fault.kind for fault in plan.faults})
    return (
        f"{_count(len(plan.faults), 'fault')} of {_count(kinds, 'kind')} in {plan.calm_ns / SECOND:.0f} s, "
        f"{_count(len(plan.actors), 'actor')}, {plan.nodes} nodes"
    )


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def describe_finding(result: Result, replay: str) -> str:
    """Describes a finding: what broke, the faults, the last events, each node's state, and how to see it again.

    With the run's traces (`Result.traces`), what happened last includes what clients asked and replicas stored.
    """
    violation = result.violation
    assert violation is not None, "a finding"
    return "\n".join(
        (
            f"seed {result.plan.seed}: {violation.invariant} ({violation.node})",
            violation.detail.rstrip(),
            "",
            "faults",
            *describe_plan(result.plan),
            "",
            f"the last of what happened, up to {result.simulated_ns / 1e9:.6f} s",
            *last_events(result.transcript, result.traces),
            "",
            "nodes at that moment",
            *result.states,
            "",
            f"again: {replay}",
        )
    )
