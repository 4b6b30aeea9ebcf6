"""``python -m simulation SEED SECONDS NODES``: runs one seed and prints the digest of its traces.

This is how a batch checks determinism: in a process of its own, with another PYTHONHASHSEED, the digest must be the
same.
"""

import sys

from simulation.plans.draw import draw_plan
from simulation.world.running import run_plan


def main() -> None:
    """Prints the digest, and the violation if there is one."""
    seed, seconds, nodes = (int(argument) for argument in sys.argv[1:4])
    result = run_plan(draw_plan(seed, seconds=seconds, nodes=nodes))
    print(result.trace_digest)
    if result.violation is not None:
        print(result.violation.invariant)


if __name__ == "__main__":
    main()
