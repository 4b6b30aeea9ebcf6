"""The rules of name servers that are configured while they run: keys and values, write permission, topics.

Each answer is what the requests before it make it (`name_server_model`); what a client gets is what its name server
held at a moment between question and answer. A name server with a file keeps all that it has acknowledged; one without
a file forgets all when its process ends. While no name server shows that the topic may be written, a producer that did
not know its route before sends nothing to it, and is told so in time; a reader finds its queues all the same. Where all
name servers show that it may be written, a producer that asks is told so, whatever it knew before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from broker.client.errors import ClientError, NameServerUnavailable, NoRoute
from broker.client.message import MessageQueue
from broker.client.transport.runtime import Runtime
from broker.name_server import NameServer
from broker.name_server.key_values import ORDER_TOPIC_NAMESPACE
from broker.remoting.codes import Permission, RequestCode
from broker.remoting.command import OWN_VERSION, RemotingCommand, request
from broker.remoting.errors import RemotingError
from broker.remoting.frame import FrameDecoder, whole_commands
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage, values_since
from simulation.judges.name_server_model import SAVING, NameServerModel, Table, answer_of
from simulation.machines.name_server_host import NameServerHost
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.time_limits import TimeLimits

TOPIC: Final = "postings"
SETTINGS: Final = "TRIVET_NAMESRV_CONFIG"
NAMESPACES: Final = ("NAMES", "COLORS", ORDER_TOPIC_NAMESPACE)
"""The namespaces that are written to."""
_LIKE_IT: Final = "TBW102"
"""The topic whose route says where a topic that is not there may be written."""
_SENT_FROM_NS: Final = 10 * SECOND
"""From so long after all faults on each message is stored."""

_Permissions = tuple[int | None, int | None, bool]
"""The permissions of the topic, and of the one that it would be made like; and whether the route says which queues are
written to in their order: the reference's producers take those whatever the permission."""
_NOTHING: Final[_Permissions] = (None, None, False)


@dataclass(slots=True)
class _Server:
    """A name server, and what it held at which true time."""

    model: NameServerModel = field(default_factory=NameServerModel)
    runs: bool = False
    interrupted: Table | None = None
    """The table that it may have saved when power failed, beside the one it had."""
    tables: list[tuple[int, Table]] = field(default_factory=lambda: [(0, {})])
    permissions: list[tuple[int, _Permissions]] = field(default_factory=lambda: [(0, _NOTHING)])

    def note(self, now_ns: int) -> None:
        """Notes what has changed in it."""
        if self.tables[-1][1] != self.model.table:
            self.tables.append((now_ns, self.model.table))
        model = self.model
        both = _NOTHING
        if self.runs:
            ordered = model.order(TOPIC) is not None
            both = (model.permission(TOPIC), model.permission(_LIKE_IT), ordered)
        if self.permissions[-1][1] != both:
            self.permissions.append((now_ns, both))


class Configurations(Invariant):
    """Each name server does what it is asked, and nothing else."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._servers: dict[str, _Server] = {}
        """By address."""
        self._sent: dict[str, int] = {}
        """Key of a message -> the time at which its producer was made."""
        self._stored: dict[str, None] = {}
        self.limits = TimeLimits("sends end in time", context.scheduler)
        context.name_server_watchers.append(self)

    # ---- what happens to name servers ----------------------------------------------------------------

    def name_server_started(self, host: NameServerHost, core: NameServer) -> None:
        """Checks that a process that starts knows what it has to, and nothing else. Raises Violation."""
        server = self._servers.setdefault(host.address, _Server())
        # A change during which power failed was acknowledged to nobody: the file may have it or not.
        allowed = [server.model.table if host.has_file else {}]
        if server.interrupted is not None:
            allowed.append(server.interrupted)
        found = _table_of(core)
        if found not in allowed:
            raise Violation(
                "name servers keep what they acknowledged", host.name, f"{found}, not any of {allowed}"
            )
        if found:
            self.context.journal.did("name server started with its configuration")
        server.interrupted = None
        server.runs = True
        server.model.restarted(found)
        server.note(self._now_ns())

    def name_server_stopped(self, host: NameServerHost) -> None:
        """Notes that the process has ended: it tells nobody anything."""
        server = self._servers[host.address]
        server.runs = False
        server.note(self._now_ns())

    def name_server_interrupted(self, host: NameServerHost, command: RemotingCommand) -> None:
        """Notes a change that has been saved, or has not."""
        server = self._servers[host.address]
        server.interrupted = server.model.changed(command)
        self.context.journal.did("name server's change interrupted")

    def name_server_lost(self, host: NameServerHost, number: int) -> None:
        """Notes that a broker has gone with its connection."""
        server = self._servers[host.address]
        server.model.closed(number)
        server.note(self._now_ns())

    def name_server_expired(self, host: NameServerHost) -> None:
        """Notes that silent brokers have gone."""
        server = self._servers[host.address]
        server.model.expired(host.now_ns())
        server.note(self._now_ns())

    def name_server_asked(
        self, host: NameServerHost, number: int, command: RemotingCommand, now_ns: int, answer: bytes | None
    ) -> None:
        """Checks that the answer is what the requests before it make it. Raises Violation."""
        if command.is_response:
            return
        # A change that could not be saved must be refused, and not be in force: so the model is told that the disk
        # failed.
        server = self._servers[host.address]
        failed = command.code in SAVING and host.storage is not None and host.storage.failed
        expected = server.model.answer(number, command, now_ns, failed=failed)
        server.note(self._now_ns())
        if expected is None or answer is None:
            return
        (given,) = FrameDecoder().feed(answer)
        try:
            said = answer_of(command.code, given)
        except RemotingError as error:
            raise Violation("name servers answer by what was asked", host.name, str(error)) from error
        if said != expected:
            raise Violation(
                "name servers answer by what was asked",
                host.name,
                f"{command.code} {dict(command.fields)}: {said} ({given.remark}), not {expected}",
            )
        if failed:
            self.context.journal.did("name server's change refused")

    # ---- what clients are told -----------------------------------------------------------------------

    def told(
        self, address: str, since_ns: int, question: str, fits: Callable[[Table], bool], answer: object
    ) -> None:
        """Judges an answer about keys and values: it was true at some moment since the question. Raises Violation."""
        if not any(fits(table) for table in values_since(self._servers[address].tables, since_ns)):
            raise Violation("clients are told what was configured", address, f"{question}: {answer}")
        self.context.journal.did("name server asked for keys and values")

    def changed(self, address: str, since_ns: int, namespace: str, key: str, value: str | None) -> None:
        """Judges an acknowledged change: it is there, or was and another one has come after it. Raises Violation."""
        tables = values_since(self._servers[address].tables, since_ns)
        if not any(table.get(namespace, {}).get(key) == value for table in tables):
            raise Violation("clients are told what was configured", address, f"{namespace}/{key} = {value}")
        self.context.journal.did("key put" if value is not None else "key deleted")

    def routed(self, address: str, since_ns: int, permission: int | None) -> None:
        """Judges a route: the topic may be used so; None for a topic without a route. Raises Violation."""
        known = values_since(self._servers[address].permissions, since_ns)
        if not any(permission == both[0] for both in known):
            raise Violation("clients are told what was configured", address, f"{permission}, not {known}")
        if permission is not None and not permission & Permission.WRITE:
            self.context.journal.did("route without write permission")

    def wiped(self, address: str, since_ns: int) -> None:
        """Judges the answer that write permission has been taken: there was a moment without it. Raises Violation."""
        if all(
            both[0] is not None and both[0] & Permission.WRITE
            for both in values_since(self._servers[address].permissions, since_ns)
        ):
            raise Violation("clients are told what was configured", address, "wiped, and writable all along")
        self.context.journal.did("write permission wiped")

    def found_queues(self, since_ns: int, queues: list[MessageQueue], error: ClientError | None) -> None:
        """Judges what a reader was told that has asked where the topic is. Raises Violation."""
        known = [both[0] for both in self._permissions_since(since_ns)]
        if isinstance(error, NameServerUnavailable) or any(
            permission is None or not permission & Permission.READ for permission in known
        ):
            return
        if not queues:
            raise Violation("what may not be written can be read", "clients", f"{error!r}, {known}")
        if any(permission is not None and not permission & Permission.WRITE for permission in known):
            self.context.journal.did("queues read without write permission")

    def not_writable(self, since_ns: int, error: NoRoute) -> None:
        """Judges the answer to a producer that it can send nowhere. Raises Violation."""
        if all(
            permission is not None and permission & Permission.WRITE
            for permission, _, _ in self._permissions_since(since_ns)
        ):
            raise Violation("what may be written again is written", "clients", repr(error))
        self.context.journal.did("resident may not send")

    # ---- what is sent --------------------------------------------------------------------------------

    @contextmanager
    def sending(self, runtime: Runtime, limit_s: float) -> Iterator[str]:
        """Names a message that a new producer is to send, and checks that this ends in time: within the block."""
        name = f"posting{len(self._sent)}"
        self._sent[name] = self._now_ns()
        with self.limits.in_time(runtime, f"the send of {name}", limit_s):
            yield name

    def sent(self, name: str) -> None:
        """Judges an acknowledgement: the message is stored. Raises Violation."""
        if name not in self._stored:
            raise Violation("acknowledged messages are committed", "clients", name)
        self.context.journal.did("newcomer's message stored")

    def not_sent(self, name: str, error: ClientError) -> None:
        """Judges a failure: the message is not stored, or nobody knows. Raises Violation."""
        since_ns = self._sent[name]
        if since_ns >= self.context.calm_ns + _SENT_FROM_NS:
            raise Violation("liveness", "clients", f"{name} was not stored: {error!r}")
        if not self._may_be_written(since_ns):
            if not isinstance(error, NoRoute | NameServerUnavailable):
                raise Violation("nothing is sent where nothing may be written", name, repr(error))
            self.context.journal.did("newcomer had nowhere to write")

    def committed(self, message: CommittedMessage) -> None:
        """Checks that the sender of a committed message was shown where to send it. Raises Violation."""
        if message.record.topic != TOPIC:
            return
        name = message.property(b"KEYS") or ""
        if name in self._stored:
            raise Violation("committed once", "group", f"{name} is there twice")
        self._stored[name] = None
        if not self._may_be_written(self._sent[name]):
            raise Violation(
                "nothing is sent where nothing may be written", "group", f"{name}, of {self._sent[name]}"
            )

    # ---- at the end ----------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Checks that no send goes on for ever."""
        self.limits.check_end()

    # ---- inside --------------------------------------------------------------------------------------

    def _now_ns(self) -> int:
        return self.context.scheduler.now_ns

    def _permissions_since(self, since_ns: int) -> list[_Permissions]:
        return [
            both for server in self._servers.values() for both in values_since(server.permissions, since_ns)
        ]

    def _may_be_written(self, since_ns: int) -> bool:
        """True if any name server has shown since then that the topic may be written, or, where it has no route to it,
        that the topic may be written after which it would be made.
        """
        return any(
            is_ordered
            or (permission is not None and permission & Permission.WRITE)
            or (permission is None and like is not None and like & Permission.WRITE)
            for permission, like, is_ordered in self._permissions_since(since_ns)
        )


def _table_of(core: NameServer) -> Table:
    """Returns all keys and values that a name server holds."""
    table: Table = {}
    for namespace in (*NAMESPACES, SETTINGS):
        question = request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        question.version = OWN_VERSION
        frame = core.answer(-1, question, 0)
        assert frame is not None, "it is a question"
        (answer,) = whole_commands(frame)
        _, held = answer_of(RequestCode.GET_KVLIST_BY_NAMESPACE, answer)
        if isinstance(held, dict):
            table[namespace] = held
    return table
