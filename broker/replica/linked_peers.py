"""The peers that a replica has links with: what it tells each of itself, and what it learns of them.

How links are dialled, proved and ended is in broker/node/links.py.
"""

from broker.peers.protocol import Hello
from broker.replica.applied import AppliedState
from broker.replica.group_clock import GroupClock
from broker.replica.members import Members
from broker.requests.connection import Connection
from broker.state.release import Release


class LinkedPeers:
    """The peers of one replica, as its links see them."""

    __slots__ = ("_applied", "_clock", "_links", "_members", "_versions", "node_id", "release")

    def __init__(
        self,
        links: dict[str, Connection],
        versions: dict[str, int],
        members: Members,
        clock: GroupClock,
        applied: AppliedState,
        release: Release,
    ) -> None:
        """`links` and `versions` are the replica's (`Replica.links`): it reads them, and here they change."""
        self.node_id = members.node_id
        self.release = release
        self._links = links
        self._versions = versions
        self._members = members
        self._clock = clock
        self._applied = applied

    @property
    def wanted(self) -> dict[str, str]:
        """The nodes to keep a link to, by id, with their addresses; replaced, never changed."""
        return self._members.peers

    @property
    def group_format(self) -> int:
        """The format that the group has, as far as this node knows."""
        return self._applied.metadata.format

    def hello(self, group: str, target: str, nonce: bytes) -> Hello:
        """Returns the first frame on a link to `target`; `group` is the group's name among its nodes."""
        release, clock = self.release, self._clock
        return Hello(
            release.newest_protocol,
            group,
            self.node_id,
            target,
            self._members.addresses.get(self.node_id, ""),
            nonce,
            release.oldest_protocol,
            release.newest_format,
            release.name,
            clock.time_ms,
            clock.is_agreed,
        )

    # ------------------------------------------------------------------ links that this node sends on

    def up(self, node: str, connection: Connection, version: int) -> None:
        """Takes the link to `node`, which is up, with that version of the protocol."""
        assert node not in self._links, f"{node} has one link that this node sends on"
        self._links[node] = connection
        self._versions[node] = version

    def down(self, node: str, connection: Connection) -> None:
        """Forgets the link to `node`, which was up and is lost."""
        gone = self._links.pop(node)
        assert gone is connection, f"another link to {node} is lost than the one that was up"

    def sends_to(self, node: str) -> bool:
        """Tells whether the link to `node` is up."""
        return node in self._links

    # ------------------------------------------------------------------ links that it receives on

    def met(self, hello: Hello, now_ns: int) -> None:
        """Learns from the hello of a node that has proved itself: its link is up, perhaps behind an earlier one."""
        if hello.time_ms is not None:
            self._clock.told(hello.source, hello.time_ms, now_ns, is_agreed=hello.is_group_time)
        self._members.met(hello.source, hello.address, hello.newest_format)

    def parted(self, node: str) -> None:
        """Forgets what `node` has said of itself: its last link is lost."""
        self._members.parted(node)
