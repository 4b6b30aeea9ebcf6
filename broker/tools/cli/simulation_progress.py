"""A simulated run that somebody waits for: how far it has come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.tools.cli.errors import INTERRUPTED, CommandError
from broker.tools.cli.progress import Progress

if TYPE_CHECKING:
    from simulation.world.building import World

_LINE_EVERY_S = 60.0


@contextmanager
def told(world: World) -> Iterator[None]:
    """Tell of the world's run while the block lasts: on a terminal twice a second, elsewhere every minute.

    Raises CommandError for Ctrl-C, with the moment that the run had come to.
    """
    progress = Progress(_LINE_EVERY_S)
    is_over = threading.Event()

    def keep_telling() -> None:
        # A thread of its own, which reads one number: in the run nothing may depend on real time.
        while not is_over.wait(progress.pause_s):
            progress.show(f"{_reached(world)} simulated")

    telling = threading.Thread(target=keep_telling, daemon=True)
    telling.start()
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(
            f"seed {world.plan.seed}: interrupted at {_reached(world)} simulated; nothing wrong was found until then",
            INTERRUPTED,
        ) from None
    finally:
        is_over.set()
        telling.join()
        progress.clear()


def _reached(world: World) -> str:
    # A run goes on behind its plan's end until the last messages are read.
    now_ns, end_ns = world.scheduler.now_ns, world.plan.end_ns
    return f"{min(now_ns, end_ns) / 1e9:.0f} of {end_ns / 1e9:.0f} s"
