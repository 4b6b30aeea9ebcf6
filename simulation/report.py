"""Results as text: one line for a run that holds, a page for a finding."""

from simulation.plan import Plan
from simulation.world import Result

__all__ = ["describe_finding", "describe_plan", "summary_line"]

_LINES_SHOWN = 60


def summary_line(result: Result, cpu_seconds: float) -> str:
    """One run in one line."""
    simulated = result.simulated_ns / 1e9
    verdict = "holds" if result.violation is None else f"VIOLATED: {result.violation.invariant}"
    return (
        f"seed {result.plan.seed}: {verdict}; {simulated:.0f} s simulated, {simulated / max(cpu_seconds, 1e-9):.0f} "
        f"per second; {result.committed} entries, {result.acknowledged} acknowledged, {result.read} read, "
        f"{result.elections} elections, {sum(result.fault_counts.values())} faults"
    )


def describe_plan(plan: Plan) -> list[str]:
    """The settings and faults of a plan, one a line."""
    settings = (
        f"{plan.nodes} nodes, {plan.flush} flush, data files of {plan.data_file_bytes // 1024} KiB, "
        f"{plan.producers} producers, {plan.queues} queues, {len(plan.faults)} faults"
    )
    lines = [settings, f"actors: {', '.join(plan.actors)}"]
    lines += [
        f"{fault.time_ns / 1e9:11.6f}  {fault.kind} (target {fault.target}, {fault.duration_ns / 1e9:.3f} s, "
        f"amount {fault.amount:.3f})"
        for fault in plan.faults
    ]
    return lines


def describe_finding(result: Result, replay: str) -> str:
    """What broke, the faults that led there, what happened last, each node's state, and how to see it again."""
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
            *result.transcript[-_LINES_SHOWN:],
            "",
            "nodes at that moment",
            *result.states,
            "",
            f"again: {replay}",
        )
    )
