"""The reference name server and brokers, as an oracle for the tests' own expectations.

Starts RocketMQ from its published Java archives on free loopback ports with small heaps and small files: one plain
broker, or a DLedger group of three. Development only: ``pytest tests/interop --broker reference``; the normal suite
never needs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.interop import wire
from tests.interop.artifacts import JAVA_OPENS, REFERENCE_VERSION, java, reference_classpath
from tests.interop.cluster import HOST, READY_LIMIT_S, Node, free_base_port, has_leader, wait_for_leader
from tests.interop.processes import wait_until

NAME_SERVER_MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN = "org.apache.rocketmq.broker.BrokerStartup"
GROUP = "RaftNode00"
PORTS_PER_BROKER = 4
"""VIP port (listen - 2), one unused, the listen port, the HA port (listen + 1)."""

LOGBACK = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""

# The same for both kinds of group. Check-backs of transactions come soon, so that tests need not wait for minutes.
COMMON_SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": GROUP,
    "brokerIP1": HOST,
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "diskMaxUsedSpaceRatio": "95",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "4000",
    "sendMessageThreadPoolNums": "4",
    "pullMessageThreadPoolNums": "4",
}


class ReferenceCluster:
    """A reference name server with one group: ``replicas`` 1 is a plain master, 3 a DLedger group.

    A plain master may have `slaves`, which replicate it and never take its place; they are no `nodes`. `options` are
    for the virtual machines of all, `broker_options` for the brokers'; what `folder/conf` has already stays. In the
    seconds of a test Java's second compiler gains nothing: only with `lasting` it is used.
    """

    def __init__(
        self,
        folder: Path,
        replicas: int = 3,
        settings: dict[str, str] | None = None,
        *,
        version: str = REFERENCE_VERSION,
        heap_mib: int = 400,
        slaves: int = 0,
        options: Sequence[str] = (),
        broker_options: Sequence[str] = (),
        lasting: bool = False,
    ) -> None:
        self.kind = "reference" if replicas > 1 else "reference-single"
        self._folder = folder
        self._replicas = replicas
        self._slaves = slaves
        self._options = options if lasting else ("-XX:TieredStopAtLevel=1", *options)
        self._broker_options = broker_options
        self._settings = settings or {}
        self._heap_mib = heap_mib
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        conf = folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for name in ("logback_namesrv.xml", "logback_broker.xml"):
            (conf / name).write_text(LOGBACK)
        self._classpath = reference_classpath(version)

        name_server_port = free_base_port(1)
        self.name_server = f"{HOST}:{name_server_port}"
        (conf / "namesrv.conf").write_text(f"listenPort={name_server_port}\nkvConfigPath={folder}/kv.json\n")
        self.nodes: Sequence[Node] = []
        self.slaves: Sequence[Node] = []
        try:
            self._start("namesrv", NAME_SERVER_MAIN, conf / "namesrv.conf", heap_mib=128)
            brokers = replicas + slaves
            base = free_base_port(PORTS_PER_BROKER * brokers + replicas)
            self._ports = [base + 2 + PORTS_PER_BROKER * i for i in range(brokers)]
            self._peer_ports = [base + PORTS_PER_BROKER * brokers + i for i in range(replicas)]
            self.nodes = [self._start_broker(i) for i in range(replicas)]
            self.slaves = [self._start_broker(i) for i in range(replicas, brokers)]
            everyone = self._all_registered
            wait_until(everyone, READY_LIMIT_S, "the reference group registered")
        except BaseException:
            self.stop()
            raise

    def leader(self) -> Node:
        return wait_for_leader(self.name_server, self.nodes)

    def store_of(self, identity: str) -> Path:
        """The directory of a node's store."""
        return self._folder / "store" / identity

    def stop(self, *, keep_stores: bool = False) -> None:
        """SIGTERM to each, SIGKILL to what is left after ten seconds; after a minute where stores are to be whole."""
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(60 if keep_stores else 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self._processes.clear()
        if not keep_stores:
            shutil.rmtree(self._folder / "store", ignore_errors=True)

    def _all_registered(self) -> bool:
        if not has_leader(self.name_server, self.nodes):
            return False
        return len(wire.broker_addresses(self.name_server)[GROUP]) == self._replicas + self._slaves

    def _start_broker(self, position: int) -> Node:
        identity = f"n{position}"
        store = self.store_of(identity)
        settings = {
            **COMMON_SETTINGS,
            "listenPort": str(self._ports[position]),
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
        }
        if self._replicas > 1:
            peers = (f"n{i}-{HOST}:{port}" for i, port in enumerate(self._peer_ports))
            settings |= {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": GROUP,
                "dLegerPeers": ";".join(peers),
                "dLegerSelfId": identity,
            }
        settings |= self._settings
        if position >= self._replicas:
            settings |= {"brokerRole": "SLAVE", "brokerId": str(position)}
        path = self._folder / "conf" / f"{identity}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        process = self._start(
            identity, BROKER_MAIN, path, heap_mib=self._heap_mib, options=self._broker_options
        )
        return Node(identity, process.pid, f"{HOST}:{self._ports[position]}")

    def _start(
        self, name: str, main: str, config: Path, heap_mib: int, options: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        argv = [
            java(),
            f"-Xms{heap_mib}m",
            f"-Xmx{heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:MaxDirectMemorySize=512m",
        ]
        argv += [
            *self._options,
            *options,
            *JAVA_OPENS,
            f"-Duser.home={self._folder}",
            "-cp",
            self._classpath,
            main,
            "-c",
            str(config),
        ]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "ROCKETMQ_HOME": str(self._folder)},
                cwd=self._folder,
                start_new_session=True,
            )
        self._processes[name] = process
        return process


def main() -> None:
    """Runs a reference group until a line arrives on standard input: ``python -m tests.interop.reference``."""
    import json
    import sys
    import tempfile

    replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        cluster = ReferenceCluster(Path(folder), replicas, lasting=True)
        try:
            leader = cluster.leader()
            nodes = [
                {
                    "id": n.id,
                    "pid": n.pid,
                    "address": n.address,
                    "role": "leader" if n == leader else "follower",
                }
                for n in cluster.nodes
            ]
            print("READY " + json.dumps({"namesrv": cluster.name_server, "nodes": nodes}), flush=True)
            sys.stdin.readline()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
