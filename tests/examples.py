"""How many examples a test that says it itself gives Hypothesis: a part of them between edits."""

from hypothesis import settings

HYPOTHESIS_DEFAULT = 100


def examples(wanted: int) -> int:
    """Returns as many, or the part of them that the profile in use gives tests that say nothing themselves."""
    return max(1, wanted * settings().max_examples // HYPOTHESIS_DEFAULT)
