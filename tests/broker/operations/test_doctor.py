"""The doctor: a whole cluster has nothing but notes, and each thing that can be wrong is found alone."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.operations.clients import ConnectedClient
from broker.operations.doctor import CHECKS, Diagnosis, diagnose, judged
from broker.operations.examination import Examination, ExaminedNameServer, examine
from broker.remoting.codes import RequestCode
from broker.remoting.node_status import ProcessFacts
from raft.recovery_loss import Loss
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime


def found(diagnosis: Diagnosis, *severities: str) -> list[tuple[str, str]]:
    wanted = severities or ("fault", "warning")
    return [(one.check, one.about) for one in diagnosis.findings if one.severity in wanted]


@pytest.fixture
async def healthy(admin: AdminClient) -> Examination:
    """What is found of a cluster that nothing is wrong with; its clocks are those of the harness, all alike."""
    examination = await examine(admin)
    nodes = tuple(dataclasses.replace(node, ahead_ms=0.0) for node in examination.nodes)
    return dataclasses.replace(examination, nodes=nodes)


async def test_a_whole_cluster(healthy: Examination) -> None:
    diagnosis = judged(healthy)
    assert diagnosis.is_healthy
    assert diagnosis.checks == tuple(CHECKS)
    assert found(diagnosis) == []
    assert set(found(diagnosis, "note")) == {
        ("addresses", "all nodes"),
        ("replicas", "b"),
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"disk_full": True}, ("fault", "disks")),
        ({"damage_left": 3}, ("fault", "damage")),
        ({"disk_free_bytes": 20, "disk_total_bytes": 100}, ("warning", "disks")),
        ({"process": ProcessFacts(open_files=90, open_files_max=100)}, ("warning", "files")),
        ({"release": "0.1.0"}, ("warning", "versions")),
        ({"format": 99}, ("warning", "versions")),
        ({"process": ProcessFacts(certificate_expires_ms=1)}, ("fault", "certificates")),
        ({"recovering": "entries"}, ("warning", "replicas")),
    ],
)
async def test_one_thing_wrong_at_one_node(
    healthy: Examination, changes: dict[str, object], expected: tuple[str, str]
) -> None:
    first, *others = healthy.nodes
    assert first.status is not None
    changed = dataclasses.replace(first, status=msgspec.structs.replace(first.status, **changes))
    (one,) = [
        finding
        for finding in judged(dataclasses.replace(healthy, nodes=(changed, *others))).findings
        if finding.severity != "note"
    ]
    assert (one.severity, one.check) == expected
    assert one.advice


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (Loss.ENTRIES.value, "the last entries of its log that it acknowledged"),
        (Loss.VOTE.value, "the votes that it gave before its disk was replaced"),
        (Loss.ALL.value, "its votes and all entries of its log, as its disk was empty or came from a backup"),
        ("of a newer release", "of a newer release"),
    ],
)
async def test_what_a_node_may_lack_is_said_in_words(healthy: Examination, loss: str, words: str) -> None:
    """It said "may lack: vote"."""
    first, *others = healthy.nodes
    assert first.status is not None
    changed = dataclasses.replace(first, status=msgspec.structs.replace(first.status, recovering=loss))
    (told,) = [
        finding.what
        for finding in judged(dataclasses.replace(healthy, nodes=(changed, *others))).findings
        if finding.severity != "note"
    ]
    assert told == f"it is recovering: it may lack {words}"


@pytest.mark.parametrize(("voters", "is_named"), [(("n0", "n1"), True), (("n0", "n1", "n2"), False)])
async def test_an_empty_one_of_two_voters_without_a_leader(
    healthy: Examination, voters: tuple[str, ...], is_named: bool
) -> None:
    nodes = tuple(
        dataclasses.replace(
            node, status=msgspec.structs.replace(node.status, serving=False, recovering=loss, voters=voters)
        )
        for node, loss in zip(healthy.nodes, (Loss.ALL.value, None), strict=False)
        if node.status is not None
    )
    (fault,) = [
        finding
        for finding in judged(dataclasses.replace(healthy, nodes=nodes)).findings
        if finding.severity == "fault"
    ]
    assert fault.what == "no leader serves"
    assert ("storage.accept_data_loss" in fault.advice) == is_named


async def test_clocks_apart_and_a_certificate_that_ends_soon(healthy: Examination) -> None:
    first, *others = healthy.nodes
    assert first.status is not None
    soon = ProcessFacts(certificate_expires_ms=healthy.now_ms + 3 * 24 * 3_600_000)
    changed = dataclasses.replace(
        first, ahead_ms=2_500.0, status=msgspec.structs.replace(first.status, process=soon)
    )
    diagnosis = judged(dataclasses.replace(healthy, nodes=(changed, *others)))
    assert found(diagnosis) == [("clocks", first.address), ("certificates", first.address)]
    assert "2.5 s" in diagnosis.findings[0].what


async def test_addresses_that_clients_elsewhere_are_given(healthy: Examination) -> None:
    away = ConnectedClient(
        client_id="c",
        role="consumer",
        group="g",
        address="10.1.2.3:4567",
        language="JAVA",
        version=475,
        brokers=("a",),
    )
    diagnosis = judged(dataclasses.replace(healthy, clients=(away,)))
    assert {check for check, _ in found(diagnosis, "fault")} == {"addresses"}
    assert "10.1.2.3" in diagnosis.findings[0].what
    first, *_ = healthy.nodes
    nowhere = dataclasses.replace(first, address="0.0.0.0:10911")
    diagnosis = judged(dataclasses.replace(healthy, nodes=(nowhere,)))
    assert ("addresses", "0.0.0.0:10911") in found(diagnosis, "fault")


async def test_names_and_addresses_that_two_share(healthy: Examination) -> None:
    first, second, *others = healthy.nodes
    assert first.status is not None
    assert second.status is not None

    def with_status(**changes: object) -> Diagnosis:
        assert second.status is not None
        changed = dataclasses.replace(second, status=msgspec.structs.replace(second.status, **changes))
        return judged(dataclasses.replace(healthy, nodes=(first, changed, *others)))

    assert ("names", second.address) in found(with_status(group="another"), "fault")
    assert ("names", "a") in found(with_status(voters=("n7", "n8", "n9")), "fault")
    assert ("names", "a") in found(with_status(node=first.status.node), "fault")
    twice = dataclasses.replace(others[-1], address=first.address)
    diagnosis = judged(dataclasses.replace(healthy, nodes=(first, second, *others, twice)))
    assert ("names", first.address) in found(diagnosis, "fault")


async def test_name_servers_that_are_silent_or_know_less(healthy: Examination) -> None:
    (one,) = healthy.name_servers
    poorer = ExaminedNameServer(address="ns2:9876", brokers={"b": ("127.0.0.1:10100",)})
    dead = ExaminedNameServer(address="ns3:9876", brokers=None, failure="refused")
    diagnosis = judged(dataclasses.replace(healthy, name_servers=(one, poorer, dead)))
    assert found(diagnosis) == [("name servers", "ns3:9876"), *[("name servers", "ns2:9876")] * 3]
    # Without a name server nothing else was looked at, and nothing else is called healthy.
    alone = judged(dataclasses.replace(healthy, name_servers=(dead,), nodes=(), failure="no name server"))
    assert (alone.is_healthy, alone.checks) == (False, ("name servers",))
    assert {finding.check for finding in alone.findings} == {"name servers"}
    empty = dataclasses.replace(one, brokers={})
    assert not judged(dataclasses.replace(healthy, name_servers=(empty,), nodes=())).is_healthy


async def test_a_broker_group_that_is_gone_as_a_whole(admin: AdminClient) -> None:
    """Name servers forget it, so that somebody has to say that it should be there: who asks, or an ordered topic."""
    assert (await diagnose(admin, ["a", "b"])).is_healthy
    fields = {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "t",
        "value": "a:2;gone:2;;no count;lost:1;empty:0;unsaid:",
    }
    assert (await admin.call(NAME_SERVER, RequestCode.PUT_KV_CONFIG, fields)).code == 0
    diagnosis = await diagnose(admin)
    assert found(diagnosis, "fault") == [("name servers", "gone"), ("name servers", "lost")]
    assert diagnosis.findings[0].what.endswith("ordered topics: t")
    diagnosis = await diagnose(admin, ["b", "gone", "c", "c"])
    assert found(diagnosis, "fault") == [("name servers", name) for name in ("gone", "c", "lost")]
    assert not diagnosis.is_healthy


async def test_a_dead_node_and_members_that_disagree(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    a, _ = leaders
    followers = [
        broker
        for broker in a.world.servers.values()
        if isinstance(broker, Broker) and broker.group is a.group
    ]
    victim = next(broker for broker in followers if broker is not a)
    async with (
        Consumer(NAME_SERVER, group="torn", topics={"t": "x"}, runtime=runtime),
        Consumer(NAME_SERVER, group="torn", topics={"t": "y"}, runtime=runtime),
    ):
        await trio.sleep(5)
        victim.kill()
        await trio.sleep(10)
        diagnosis = await diagnose(admin)
    assert ("subscriptions", "torn") in found(diagnosis, "fault")
    assert ("replicas", f"a {victim.node_id}") in found(diagnosis, "fault")
    a.kill()
    diagnosis = await diagnose(admin)
    assert ("replicas", "a") in found(diagnosis, "fault"), "one of three cannot elect"


async def test_an_address_is_named_once(leaders: list[Broker], runtime: ClientRuntime) -> None:
    async with AdminClient("nowhere:9876", runtime=runtime) as admin:
        (finding,) = (await diagnose(admin)).findings
    assert finding.about == "nowhere:9876"
    assert finding.what.startswith("does not answer: cannot connect")
