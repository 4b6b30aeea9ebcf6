"""Measures systems beside `trivet bench`: ``python -m benchmarks.peers SYSTEM... [--only ABCDE] [--repetitions N]``.

Each is measured in its turn, with fresh servers for every run; figures go to ``bench-results/SYSTEM.json``. `README.md`
says what each needs.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.etcd import EtcdSystem
from benchmarks.peers.nats_jetstream import NatsSystem
from benchmarks.peers.rabbitmq import RabbitmqSystem
from benchmarks.peers.rocketmq import SYSTEMS as ROCKETMQ
from benchmarks.peers.workloads import Results, System, run

SYSTEMS: dict[str, Callable[[], System]] = {
    **ROCKETMQ,
    "nats": NatsSystem,
    "rabbitmq": RabbitmqSystem,
    "etcd": EtcdSystem,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("systems", nargs="+", choices=SYSTEMS, metavar="SYSTEM", help=", ".join(SYSTEMS))
    parser.add_argument("--only", default="ABCDE", help="workloads to run")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of A and B; E always has three")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="a fraction of the messages: does it run, not how fast"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("bench-results"), help="the folder of the figures"
    )
    options = parser.parse_args()
    for name in options.systems:
        print(f"-- {name}", flush=True)
        results = Results(options.output / f"{name}.json")
        asyncio.run(run(SYSTEMS[name](), options.only.upper(), options.repetitions, options.scale, results))


if __name__ == "__main__":
    main()
