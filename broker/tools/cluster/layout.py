"""The places of a local cluster: directories, settings files, addresses.

Every node has a directory with a settings file that a person can start it with by hand, its store and its log. Ports
are reserved as long as the cluster is there, whether a server of it listens on them or not.

Several groups stand on the same machines: each machine has a node of every group, a process of its own
(docs/groups.md says why). Group number g prefers a leader on machine g, modulo the number of machines: leaders are
spread, and the loss of one machine takes those of a share of the groups only. Numbers of nodes tell them apart: n0, n1,
n2 are those of the first group, n100, n101, n102 those of the second one, on the same machines.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from broker.remoting.addresses import join_address, split_address
from broker.settings.loading import to_toml
from broker.settings.tables import (
    NameServerSettings,
    NodeSettings,
    ObserveSettings,
    RaftSettings,
    Settings,
    StorageSettings,
)
from broker.tools.cluster.child import Child
from broker.tools.cluster.ports import PortReservations
from log.files.private_files import make_directories, write_file

PORTS_BETWEEN_NODES = 10
"""Nodes listen at ``port``, ``port`` + 10, ...: the ports next to each are the reference's for other purposes."""
NUMBERS_BETWEEN_GROUPS = 100
"""The first node of the second group is n100: a node's number is known by heart, and its machine is in the last two
digits."""
GROUPS_MAX = 9
"""broker-a to broker-i. Each node of each group is a process."""


@dataclass(frozen=True, slots=True)
class LocalClusterOptions:
    """The cluster to start. Port 0 takes free ports."""

    directory: Path
    nodes: int = 3
    name_server_port: int = 0
    port: int = 0
    host: str = "127.0.0.1"
    group: str = "broker-a"
    """The group's name; with several groups that of the first one."""
    groups: int = 1
    """The number of groups, each with a node on every machine. The others are broker-b, broker-c, ..."""
    storage: StorageSettings = field(
        default_factory=lambda: StorageSettings(data_file_bytes=64 * 1024 * 1024)
    )
    """Settings of every node's store; its path is replaced."""
    raft: RaftSettings = field(default_factory=RaftSettings)
    """Settings of every node's group; its peers are replaced."""
    change: Callable[[Settings], Settings] = lambda settings: settings
    """Called for every node's settings, when all else is set."""
    trace_directory: Path | None = None
    """Replicas write ``nX.trace`` there; None for no traces."""
    metrics: bool = False
    """All servers serve metrics, and ``prometheus.yml`` tells Prometheus where."""

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of all groups, in their order."""
        return (self.group, *(f"broker-{letter}" for letter in "bcdefghi"[: self.groups - 1]))


class LocalNode:
    """One broker of the cluster: its place, and its process if it has one."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings = settings
        self.directory = directory
        self.settings_path = directory / "broker.toml"
        self.log_path = directory / "broker.log"
        self.child: Child | None = None

    @property
    def id(self) -> str:
        """n0, n1, ..."""
        return self.settings.node.id

    @property
    def group(self) -> str:
        """The name of its group."""
        return self.settings.node.group

    @property
    def machine(self) -> int:
        """The number of its machine, on which each group has one node."""
        return int(self.id[1:]) % NUMBERS_BETWEEN_GROUPS

    @property
    def address(self) -> str:
        """The address at which it listens for clients."""
        return self.settings.node.listen

    @property
    def registered_address(self) -> str:
        """The address that the name server gives to clients."""
        return self.settings.node.advertise or self.address

    @property
    def peer_address(self) -> str:
        """The address at which its peers look for it."""
        return self.settings.raft.peers[self.id]

    @property
    def running(self) -> bool:
        """True while its process lives."""
        return self.child is not None and self.child.running

    @property
    def data_directory(self) -> Path:
        """The directory of the entry log's data files (docs/storage.md)."""
        return Path(self.settings.log_directory) / "data"

    def write_settings(self) -> None:
        """Write the file with which it is started."""
        write_file(self.settings_path, to_toml(self.settings).encode())


class Layout:
    """The nodes of a cluster and their files. Raises PortInUseError and OSError."""

    def __init__(self, options: LocalClusterOptions) -> None:
        assert options.nodes >= 1, "a group has at least one node"
        assert 1 <= options.groups <= GROUPS_MAX, (
            "there is at least one group, and there are letters for nine"
        )
        self.options = options
        self.directory = options.directory.absolute()
        self.name_server_settings_path = self.directory / "namesrv.toml"
        self.nodes: dict[str, LocalNode] = {}
        self._ports = PortReservations(options.host)
        self._secret = secrets.token_urlsafe(24)
        """The secret between these servers, for peers and for the name server: they have one although nobody asked for
        it."""
        self._machines = options.nodes
        try:
            self._make()
        except BaseException:
            self.release()
            raise

    def _make(self) -> None:
        options = self.options
        make_directories(self.directory)
        if options.trace_directory is not None:
            make_directories(options.trace_directory)
        port = self._ports.reserve(options.name_server_port, "the name server's")
        self.name_server_address = join_address(options.host, port)
        self.name_server_metrics = self._reserve_metrics(port, 1, "the name server's for metrics")
        settings = NameServerSettings(
            listen=self.name_server_address,
            kv_config_path=str(self.directory / "kvConfig.json"),
            registration_secret=self._secret,
            metrics=self.name_server_metrics,
        )
        write_file(self.name_server_settings_path, to_toml(settings).encode())
        # All addresses first: each node's file names the peers of all.
        reserved = {
            (number, machine): self._reserve(number, machine)
            for machine in range(options.nodes)
            for number in range(options.groups)
        }
        for number, group in enumerate(options.group_names):
            members = {
                _node_id(number, machine): reserved[number, machine] for machine in range(options.nodes)
            }
            peers = {node_id: peer for node_id, (_, peer) in members.items()}
            for node_id, (listen, _) in members.items():
                self._add(node_id, group, listen, peers, join=False)
        if options.metrics:
            self._write_prometheus_configuration()

    def _reserve_metrics(self, port: int, distance: int, whose: str) -> str:
        """Reserves an address for metrics, so far from a port that the user chose; returns "" if nobody wants it."""
        options = self.options
        if not options.metrics:
            return ""
        wanted = port + distance if options.port else 0
        return join_address(options.host, self._ports.reserve(wanted, whose))

    def _write_prometheus_configuration(self) -> None:
        targets = [self.name_server_metrics, *(node.settings.observe.metrics for node in self.nodes.values())]
        write_file(
            self.directory / "prometheus.yml",
            (
                "scrape_configs:\n"
                "  - job_name: trivet\n"
                "    scrape_interval: 5s\n"
                f"    static_configs: [{{targets: {json.dumps(targets)}}}]\n"
            ).encode(),
        )

    def release(self) -> None:
        """Give the ports back."""
        self._ports.release()

    def add_machine(self) -> list[LocalNode]:
        """Make files for one more node of each group, all on one new machine; returns them, in the groups' order.

        Start each, and have its group add it. Its peers are all nodes that its group has in this cluster: `discard`
        those that are no members any more before.
        """
        machine = self._machines
        self._machines += 1
        added = []
        for number, group in enumerate(self.options.group_names):
            node_id = _node_id(number, machine)
            listen, peer = self._reserve(number, machine)
            peers = {**self._peers(group), node_id: peer}
            added.append(self._add(node_id, group, listen, peers, join=True))
        return added

    def discard(self, node_id: str) -> None:
        """Forget a node that was removed from the group and is stopped; its files stay."""
        assert not self.nodes[node_id].running, f"{node_id} runs"
        del self.nodes[node_id]

    def write_peers(self) -> None:
        """Name the present nodes in all settings files, as operators do after a change of members."""
        for node in self.nodes.values():
            peers = self._peers(node.group)
            raft = msgspec.structs.replace(
                node.settings.raft, peers=peers, preferred_leaders=self._preferred(node.group, peers)
            )
            node.settings = msgspec.structs.replace(node.settings, raft=raft)
            node.write_settings()

    def members(self, group: str) -> list[LocalNode]:
        """The nodes of a group."""
        return [node for node in self.nodes.values() if node.group == group]

    def on_machine(self, machine: int) -> list[LocalNode]:
        """The nodes of a machine, one of each group: what is lost with it."""
        return [node for node in self.nodes.values() if node.machine == machine]

    def machines(self) -> list[int]:
        """The numbers of all machines, in the order in which they came."""
        return list(dict.fromkeys(node.machine for node in self.nodes.values()))

    def _peers(self, group: str) -> dict[str, str]:
        return {node.id: node.peer_address for node in self.members(group)}

    def _preferred(self, group: str, peers: Mapping[str, str]) -> tuple[str, ...]:
        """Return the node that should lead a group, if it is still among the group's ``peers``.

        With a single group or machine that is whoever the options prefer.
        """
        options = self.options
        if options.groups == 1 or options.nodes == 1:
            return options.raft.preferred_leaders
        number = options.group_names.index(group)
        node_id = _node_id(number, number % options.nodes)
        return (node_id,) if node_id in peers else ()

    def _reserve(self, number: int, machine: int) -> tuple[str, str]:
        """Reserve the addresses for clients and for peers of a group's node on a machine."""
        options = self.options
        node_id = _node_id(number, machine)
        wanted = options.port and options.port + (machine * options.groups + number) * PORTS_BETWEEN_NODES
        port = self._ports.reserve(wanted, f"{node_id}'s for clients")
        peer_port = self._ports.reserve(port + 1 if options.port else 0, f"{node_id}'s for its peers")
        return join_address(options.host, port), join_address(options.host, peer_port)

    def _add(self, node_id: str, group: str, listen: str, peers: dict[str, str], *, join: bool) -> LocalNode:
        options = self.options
        directory = self.directory / node_id
        make_directories(directory)
        traces = options.trace_directory
        settings = Settings(
            node=NodeSettings(
                cluster="DefaultCluster",
                group=group,
                id=node_id,
                listen=listen,
                name_servers=(self.name_server_address,),
                registration_secret=self._secret,
            ),
            raft=msgspec.structs.replace(
                options.raft,
                peers=peers,
                join=join,
                preferred_leaders=self._preferred(group, peers),
                peer_secret=options.raft.peer_secret or self._secret,
            ),
            storage=msgspec.structs.replace(options.storage, path=str(directory / "store")),
            observe=ObserveSettings(
                trace="" if traces is None else str(traces.absolute() / f"{node_id}.trace"),
                metrics=self._reserve_metrics(split_address(listen)[1], 2, f"{node_id}'s for metrics"),
            ),
        )
        node = self.nodes[node_id] = LocalNode(options.change(settings), directory)
        node.write_settings()
        return node


def _node_id(number: int, machine: int) -> str:
    """The id of a group's node on a machine; groups are numbered from 0 on."""
    return f"n{number * NUMBERS_BETWEEN_GROUPS + machine}"
