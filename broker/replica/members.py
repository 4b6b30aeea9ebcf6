"""The group's members as a replica acts on them: it keeps links to them, dismisses removed ones and awaits changes.

Raft decides who belongs to the group: `Leader.propose_configuration` (raft/leader.py) says whether a change may be made
now. What could not be committed is refused before (broker/administration/group_changes_processor.py). `MembersFile`
keeps the members with their addresses on the disk.
"""

from collections.abc import Mapping, Sequence

import structlog

from broker.peers import protocol as peer_protocol
from broker.replica.members_file import MembersFile
from broker.replica.proposals import Observer, Waiter
from broker.requests.connection import Connection
from log.formats.entry_range import EntryRange
from raft.configuration import AddLearner, Change
from raft.core import Raft
from raft.effects import ConfigurationChanged

log = structlog.get_logger("trivet.replica")


class Members:
    """The members, as far as one node knows."""

    def __init__(
        self,
        node_id: str,
        raft: Raft,
        membership: MembersFile,
        links: dict[str, Connection],
        observer: Observer,
        newest_format: int,
    ) -> None:
        """`links` are the replica's, which come and go; this node reads up to `newest_format`."""
        self.peers: dict[str, str] = {}
        """The nodes to keep a link to, by id, with their addresses; replaced, never changed."""
        self.node_id = node_id
        self._raft = raft
        self._membership = membership
        self._links = links
        self._observer = observer
        self._newest_format = newest_format
        self._formats: dict[str, int] = {}
        """The newest format that each node reads which has a link to this one."""
        self._dismissed_index = -1
        """The newest configuration of which another node has said that this node is not in it."""
        self._change: tuple[int, Waiter] | None = None
        """The entry of the change that an operator awaits, on a leader: raft takes the next when it is committed."""
        self._find_peers()
        # At the first start there is no file yet, and later the settings may name other addresses than the file does.
        self.save()

    def save(self) -> None:
        """Keeps the members, durably. Raises `log.errors.DiskError`, `DiskFullError`."""
        self._membership.save(self._raft.configurations, self._raft.lost_voters)

    def learn(self, entries: EntryRange, indices: Sequence[int]) -> None:
        """Keeps what a peer's entries at `indices` say of members, before the entries are written. Raises as `save`."""
        self._membership.learn(entries, indices)
        self.save()

    # ------------------------------------------------------------------ peers

    def met(self, node: str, address: str, newest_format: int) -> None:
        """Notes that `node` has dialled this one: it listens for peers at `address`, and reads that format and all
        before."""
        self._formats[node] = newest_format
        self._membership.met(node, address)
        self._find_peers()

    def parted(self, node: str) -> None:
        """Forgets what `node` has said of itself: the link that it had dialled is gone."""
        del self._formats[node]
        self._membership.parted(node)
        self._find_peers()

    def common_format(self) -> int | None:
        """Returns the newest format that all members read; None while one of them is not linked: it may come back
        with another release.
        """
        others = [node for node in self._raft.configuration.members if node != self.node_id]
        if not all(node in self._formats for node in others):
            return None
        return min([self._newest_format, *(self._formats[node] for node in others)])

    def linked(self, node: str) -> None:
        """Tells `node`, to which a link is up, if it was removed while it was away."""
        if node not in self._raft.configuration.members:
            self._dismiss(node)

    def _find_peers(self) -> None:
        raft = self._raft
        # What is committed cannot give way to an earlier configuration any more.
        known = (
            raft.configurations[-1:]
            if raft.configuration_index <= raft.commit_index
            else raft.configurations[-2:]
        )
        self.peers = self._membership.peers(self.node_id, [configuration for _, configuration in known])

    def is_linked(self, node: str) -> bool:
        """Tells whether this node has a link to `node` that is up."""
        return node in self._links

    def hears(self, node: str) -> bool:
        """Tells whether the link that `node` has dialled is up."""
        return node in self._formats

    def linked_voters(self) -> list[str]:
        """Returns the other voters to which there is a link, in order of their ids."""
        return sorted(node for node in self._raft.configuration.voters if node in self._links)

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses at which nodes listen for their peers, of all that this one knows."""
        return self._membership.addresses

    # ------------------------------------------------------------------ inside and outside

    @property
    def is_member(self) -> bool:
        """True if this node belongs to its group, as far as it knows: from its addition to its removal.

        A node that was away when it was removed hears of it from the others. A leader that still writes to it, or a
        newer configuration that contains it, counts for more than their word.
        """
        raft = self._raft
        if raft.leader is None and self._dismissed_index > raft.configuration_index:
            return False
        return self.node_id in raft.configuration.members

    def dismissed(self, index: int) -> None:
        """Notes the word of another node that this one is not in the configuration in force at `index`."""
        if index > self._dismissed_index:
            self._dismissed_index = index
            self._observer.role_changed()

    def _dismiss(self, node: str) -> None:
        index = self._raft.configuration_index
        # While a removal is not committed another leader may take it back.
        if index <= self._raft.commit_index:
            self._links[node].send(*peer_protocol.encode_frame(peer_protocol.NotAMember(index)))

    # ------------------------------------------------------------------ changes

    def propose(self, change: Change, address: str | None, waiter: Waiter, now_ns: int) -> None:
        """Proposes a change to raft, whose effects are to be carried out now; `waiter` hears of the outcome.

        Raises `raft.errors.ConfigurationError`, with nothing proposed.
        """
        index = self._raft.propose_configuration(change, now_ns)
        if isinstance(change, AddLearner):
            assert address, "a member needs an address"
            # Behind raft's consent, and before its effects are carried out, which write it down.
            self._membership.addresses[change.node] = address
        assert self._change is None, (
            f"the change at {self._change[0]} is awaited still, and nobody would hear of it"
        )
        self._change = (index, waiter)

    def changed(self, effect: ConfigurationChanged) -> None:
        """Keeps a configuration that is in force from now on, or notes that the one in force is committed now; follows
        it with links, and tells who awaits it. Raises as `save`."""
        self.save()
        self._find_peers()
        if effect.committed:
            self._membership.note_committed(effect.index, self._raft.configurations, self._raft.lost_voters)
            members = effect.configuration.members
            log.info("members", index=effect.index, voters=effect.configuration.voters, members=members)
            for node in self._links:
                if node not in members:
                    self._dismiss(node)
            change = self._change
            if change is not None and change[0] <= effect.index:
                self._change = None
                change[1].committed()
        self._observer.role_changed()

    def give_up_change(self) -> None:
        """Tells who awaits a change that its outcome is unknown: the leadership has ended."""
        change, self._change = self._change, None
        if change is not None:
            change[1].lost()
