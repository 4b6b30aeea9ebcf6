"""``python -m simulation SEED SECONDS NODES``: runs one seed and prints the digest of its traces.

NODES 0: as many as the seed draws.

This is how a batch checks determinism: in a process of its own, with another PYTHONHASHSEED, the digest must be the
same.
"""

import sys

from simulation.plans.seeds import plan_of_seed
from simulation.world.running import run_plan


def main() -> None:
    """Prints the digest, and the violation if there is one."""
    seed, seconds, nodes = (int(argument) for argument in sys.argv[1:4])
    result = run_plan(plan_of_seed(seed, seconds=seconds, nodes=nodes or None))
    print(result.trace_digest)
    if result.violation is not None:
        print(result.violation.invariant)


if __name__ == "__main__":
    main()
