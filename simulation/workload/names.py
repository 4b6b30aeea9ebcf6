"""Names that several actors share."""

__all__ = ["GROUP", "TOPIC"]

TOPIC = "events"
GROUP = "readers"
