"""Random numbers for what happens thousands of times a simulated second."""

from random import Random

__all__ = ["draw_range"]


def draw_range(random: Random, start: int, stop: int) -> int:
    """`random.randrange(start, stop)`, the same number from the same state, without its checks and inner calls."""
    width = stop - start
    bits = width.bit_length()
    draw_bits = random.getrandbits
    number = draw_bits(bits)
    while number >= width:
        number = draw_bits(bits)
    return start + number
