"""All randomness of a simulation: streams of random numbers, each fixed by a text.

No other module of the simulator imports `random`, so that none can draw from a stream that no seed fixes.
"""

from random import Random as Random  # re-exported


def stream(text: str) -> Random:
    """The stream that `text` fixes, in any process: the random module hashes text seeds with SHA-512."""
    return Random(text)


def branch(random: Random) -> Random:
    """A new stream, fixed by the next number of another one."""
    return Random(random.getrandbits(64))


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
