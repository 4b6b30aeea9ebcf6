"""The room for consumer groups (`limits.max_groups`), however they come into being.

A consumer group has settings, which a pull, a heartbeat or an administrator makes, or only a name under which offsets
are stored. Each is memory on every node, so whoever is about to propose what makes a consumer group known claims it
here first; what is under way counts, as several clients may begin much at once.
"""

from collections.abc import Callable, Iterable

from broker.node.ports import State
from broker.requests.errors import TooManyError
from broker.settings.live import LiveSettings


class GroupLimit:
    """Counts the consumer groups that are there and those that are under way. The leader's."""

    def __init__(self, state: State, settings: LiveSettings) -> None:
        self._state = state
        self._settings = settings
        self._under_way: dict[str, int] = {}
        """By consumer group, the number of claims. Also of groups that are known: if one is deleted before the command
        for which it was claimed is applied, that command makes it anew."""

    @property
    def claimed(self) -> int:
        """The number of consumer groups for which room is claimed now, known ones too."""
        return len(self._under_way)

    def claim(self, groups: Iterable[str]) -> Callable[[], None]:
        """Takes room for the consumer groups; calling what is returned, once, frees it. Those that are known have it.

        Raises `TooManyError`, with nothing taken.
        """
        metadata, under_way = self._state.metadata, self._under_way
        named = [*dict.fromkeys(groups)]
        new = [name for name in named if not metadata.knows_group(name)]
        most = self._settings.current.limits.max_groups
        # Thousands may be under way: which of them are known by now is asked only where it could decide.
        if new and metadata.group_count + len(under_way) + len(new) > most:
            count = metadata.group_count + sum(not metadata.knows_group(name) for name in under_way)
            if count + sum(name not in under_way for name in new) > most:
                raise TooManyError(
                    f"there are {count} consumer groups, at most {most} are allowed (limits.max_groups)"
                )
        for name in named:
            under_way[name] = under_way.get(name, 0) + 1

        def free() -> None:
            for name in named:
                under_way[name] -= 1
                if not under_way[name]:
                    del under_way[name]

        return free
