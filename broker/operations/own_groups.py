"""The consumer groups that operations themselves use, which lists of the users' own leave out."""

from typing import Final

READER_GROUP: Final = "TOOLS_CONSUMER"
"""The consumer group of RocketMQ's own tools. Every broker has it, and it stores no offsets."""
REDRIVER_PREFIX: Final = "TRIVET_REDRIVE-"
"""With a consumer group's name, the consumer group whose consumer offset tells which of its dead letters were sent
again."""


def is_made_by_tools(group: str) -> bool:
    """Tell whether a consumer group is an operation's own."""
    return group == READER_GROUP or group.startswith(REDRIVER_PREFIX)
