"""The narrow sides of a node and its replica that processors see; a processor's constructor says which it uses.

The objects behind them are `Leadership`, `Replica`, `Members` and `Node` themselves, so that a port costs no call of
its own. A processor calls its `State` port `_state` and the leader's ports, `Proposals` and `Appends`, `_leadership`.
A part of the replica that is one thing to a processor (`Loads`, `LogHead`, `GroupChanges`) is handed over as it is; so
are time, deadlines and events (`broker.requests.deadline.Time`, `Listeners`). Responses are functions
(`broker.requests.responses`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from broker.access.control import AccessControl, Sight
from broker.node.request_states import WaitingRequest
from broker.remoting.command import RemotingCommand
from broker.replica.batch_appends import BatchAppends
from broker.replica.inner_limits import InnerLimits
from broker.replica.proposals import NewMessage, Waiter, ignore
from broker.requests.connection import Connection
from broker.requests.in_turn import InTurn
from broker.requests.processing import Handler
from broker.state.commands import Command
from broker.state.metadata import Metadata
from log.entries.entry_log import EntryLog
from log.index.index_files import IndexFiles
from log.options import StoreOptions
from log.queues.consume_queue import ConsumeQueue
from log.queues.consume_queues import ConsumeQueues
from log.queues.timer_index import TimerIndex


class StoredMessages(Protocol):
    """The store as it is read: its log, and what is made of it. See `Store` for what each method raises."""

    @property
    def log(self) -> EntryLog:
        """The entries. Only the replica appends to it, and cuts it."""

    @property
    def queues(self) -> ConsumeQueues:
        """The queues of all topics."""

    @property
    def index(self) -> IndexFiles:
        """The index of messages by their keys."""

    @property
    def timers(self) -> TimerIndex:
        """The messages that wait for a time of their own."""

    @property
    def options(self) -> StoreOptions:
        """The sizes that it was opened with."""

    @property
    def head_position(self) -> int:
        """The position at which the log begins for clients: nobody is told of what is still here before it."""

    def find_by_key(self, topic: str, key: str, limit: int) -> list[int]:
        """The physical offsets of records that may have the key, newest first."""

    def store_time_of(self, physical_offset: int, size: int | None = None) -> int:
        """The store time (ms) of a record."""

    def is_unit_right(self, queue: ConsumeQueue, offset: int) -> bool:
        """Tells whether the unit of an offset leads to a record that claims that offset."""

    def is_gone(self, queue: ConsumeQueue, unit: tuple[int, int, int]) -> bool:
        """Tells whether retention took the record of a unit."""

    def record_of(self, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int]) -> memoryview:
        """The record of a message, to which its unit leads."""


class Serving(Protocol):
    """The role of this node, for those who act while it leads."""

    @property
    def serving(self) -> bool:
        """This node leads and everything committed before its term is applied: it may answer for the group."""


class GroupView(Serving, Protocol):
    """The group as this node sees it now: who leads, and which nodes it reaches."""

    @property
    def node_id(self) -> str:
        """This node."""

    @property
    def leader(self) -> str | None:
        """The node that this one follows; itself when it leads; None when unknown."""

    @property
    def term(self) -> int:
        """The current term."""

    @property
    def hands_over(self) -> bool:
        """This node leads, and leadership is going to another one just now."""

    @property
    def has_untold(self) -> bool:
        """Some who waited here when this node stopped leading are still to be told so, in the next turns."""

    @property
    def is_member(self) -> bool:
        """This node belongs to the group, as far as it knows."""

    @property
    def links(self) -> Mapping[str, Connection]:
        """The links to the other nodes that are up; this node sends on them, and hears nothing on them."""

    def hears(self, node: str) -> bool:
        """The link that another node sends on to this one is up."""

    @property
    def limits(self) -> InnerLimits:
        """The numbers that no operator sets."""


class State(Serving, Protocol):
    """The committed and applied state of this node, in whatever role."""

    @property
    def metadata(self) -> Metadata:
        """The replicated state. A snapshot from a leader puts another object here: ask anew each time."""

    @property
    def store(self) -> StoredMessages:
        """The log and its queues."""

    @property
    def limits(self) -> InnerLimits:
        """The numbers that no operator sets."""

    @property
    def applied_index(self) -> int:
        """Entries up to here are dispatched and applied."""


class Proposals(State, Protocol):
    """The state, and the leader's way to change it. See `Leadership` for what each method raises."""

    @property
    def term(self) -> int:
        """The current term."""

    def check_may_append(self, count: int = 1, *, despite_full_disk: bool = False) -> None:
        """Raises where `count` entries cannot be appended now."""

    def propose_command(
        self, command: Command, done: Callable[[Any], None] = ignore, lost: Callable[[], None] = ignore
    ) -> None:
        """Appends a metadata command; `done` gets the result of applying it."""

    def read_barrier(self, ready: Callable[[], None], lost: Callable[[], None], share: str = "") -> None:
        """Calls `ready` when what is applied here is as new as the call."""

    def when_applied(self, waiter: Waiter) -> None:
        """Tells `waiter` when all that is in the leader's log now is applied."""


class Appends(Proposals, Protocol):
    """The leader's log, for those who store messages, too."""

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message gets."""

    def append_message(
        self, message: NewMessage, waiter: Waiter | None, *, told_at_commit: bool = False
    ) -> tuple[int, int]:
        """Appends one message: (physical offset of its record, queue offset)."""

    @property
    def batches(self) -> BatchAppends:
        """Batches, of which one at a time keeps all other messages away."""


class Followers(Protocol):
    """The nodes at which clients may read besides the leader."""

    @property
    def node_id(self) -> str:
        """This node."""

    def linked_voters(self) -> list[str]:
        """The other voters to which there is a link, in order of their ids."""


class Formats(Protocol):
    """The forms of the replicated state that the members of the group can read."""

    def common_format(self) -> int | None:
        """The newest format that all members read; None while one of them is not linked."""


class Requests(Protocol):
    """The ways of a request that its processor does not answer itself."""

    @property
    def access(self) -> AccessControl | None:
        """Decides what clients of this node may do; None lets them do everything."""

    def sight(self, connection: Connection, command: RemotingCommand, /) -> Sight:
        """Returns what the client of a request may see; raises `RequestError` where its account is not known."""

    def handle_admitted(self, connection: Connection, command: RemotingCommand, /) -> None:
        """Begins anew with a request that was let in, now that what it needs is there."""

    def handle_late(self, connection: Connection, command: RemotingCommand, /) -> None:
        """Begins anew with a request that was let in, and has waited at this node; one that another node has forwarded
        to the leader of an earlier term is given back."""

    def stops_behind(self, leaving: InTurn[tuple[Connection, RemotingCommand]], /) -> None:
        """Has an orderly stop, whenever it comes, wait until `leaving` is empty: requests that turns handle anew."""

    def is_connected(self, connection: Connection, /) -> bool:
        """Tells whether somebody waits for responses on a connection."""

    def forward(self, connection: Connection, command: RemotingCommand, /) -> None:
        """Hands a request to the leader, or holds it until there is one."""

    def place_of(self, command: RemotingCommand, /) -> int:
        """Returns the place of a request among those of its client; to be kept while it waits at this node."""

    def forward_late(self, connection: Connection, command: RemotingCommand, place: int, /) -> None:
        """Forwards a request that has waited at this node for something else than a leader, such as a held pull. It
        keeps its place among the requests of its client that are held."""

    def hold_late(self, connection: Connection, command: RemotingCommand, /) -> None:
        """Holds, until there is a leader for it, a request that has waited at this node for something else. One that
        another node has forwarded to the leader of an earlier term is given back."""

    def forward_copy(self, connection: Connection, command: RemotingCommand, /) -> None:
        """Tells the leader, too, if it is another node; this node answers the client. Whatever this node is, the copy
        goes behind what it holds of the same kind."""

    def take_back(
        self,
        connection: Connection,
        key: str,
        key_of: Callable[[WaitingRequest], str | None],
        taken: Callable[[WaitingRequest], None],
        /,
    ) -> None:
        """Has turns remove a client's requests that have come until now, wait for a leader or for its response, and for
        which `key_of` returns `key`. `taken` is called with each, and has to answer it."""

    def handle_in_steps(
        self, connection: Connection, command: RemotingCommand, steps: Iterator[None], /
    ) -> None:
        """Does the first step of a request that was let in before, and one more in each turn."""

    def handle_after_barrier(
        self, connection: Connection, command: RemotingCommand, handler: Handler
    ) -> None:
        """Handles a request when what is applied here is as new as the call; leader only."""
