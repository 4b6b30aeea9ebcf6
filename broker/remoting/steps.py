"""Work that is done in steps, so that others are served between two of them: a generator that yields behind each."""

from collections.abc import Generator
from typing import TypeVar

_Result = TypeVar("_Result")


def finished(steps: Generator[None, None, _Result]) -> _Result:
    """Does all steps at once, for whoever keeps nobody waiting; returns their result. Raises what they raise."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result
