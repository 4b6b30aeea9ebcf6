"""All randomness of a simulation: streams of random numbers, each fixed by a text.

No other module of the simulator imports `random`, so that none can draw from a stream that no seed fixes.
"""

from random import Random as Random  # re-exported


class Stream(Random):
    """A stream of random numbers, and those that have branched off it."""

    def __init__(self, seed: str | int) -> None:
        super().__init__(seed)
        self.branches: list[Stream] = []

    def go_on_as(self, text: str) -> None:
        """Makes this stream, and each that has branched off it, another one, which `text` fixes, from here on."""
        self.seed(text)
        for number, one in enumerate(self.branches):
            one.go_on_as(f"{text} {number}")


def stream(text: str) -> Stream:
    """The stream that `text` fixes, in any process: the random module hashes text seeds with SHA-512."""
    return Stream(text)


def branch(random: Random) -> Stream:
    """A new stream, fixed by the next number of another one."""
    branched = Stream(random.getrandbits(64))
    if isinstance(random, Stream):
        random.branches.append(branched)
    return branched


def draw_range(random: Random, start: int, stop: int) -> int:
    """`random.randrange(start, stop)`, the same number from the same state, without its checks and inner calls.

    For what happens thousands of times a simulated second.
    """
    width = stop - start
    bits = width.bit_length()
    draw_bits = random.getrandbits
    number = draw_bits(bits)
    while number >= width:
        number = draw_bits(bits)
    return start + number
