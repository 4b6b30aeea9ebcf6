"""Options choose broker and clients: ``--broker trivet|reference|reference-5``, ``--clients cpp-0.4.4,java-4.9.8``.

The normal suite runs the C++ client against Trivet, and the Java clients through the tests marked ``core``, where Maven
can fetch them. ``make interop`` runs every test with every client.

Most tests say what clients see of a group that is whole. On a machine that stands still for seconds a group elects, and
then clients repeat what they have sent, and try again what failed, each in its own way. So such a test that has failed
while the shared group went into another term has not had what it is about, and is run again. What clients see of a lost
leader has tests with groups of their own, which are run once.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.interop import artifacts, wire
from tests.interop.clients import ALL_CLIENTS, BINARY, CPP, GO, JAVA, Client, java_version
from tests.interop.cluster import Cluster, TrivetCluster, make_topic
from tests.interop.configured import ConfiguredCluster
from tests.interop.mqadmin import Mqadmin
from tests.interop.processes import evidence
from tests.interop.reference import ReferenceCluster

BROKERS = ("trivet", "reference", "reference-single", "reference-5")

DEFAULT = "default"
"""The C++ client, and the Java clients through the tests of the core."""

PENDING: dict[str, str] = {}
"""What Trivet does not do yet (docs/compatibility.md), by test. A line goes when the feature comes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("interop")
    group.addoption("--broker", choices=BROKERS, default="trivet", help="the broker under test")
    known = ", ".join((*ALL_CLIENTS, GO))
    group.addoption("--clients", default=DEFAULT, help=f"comma-separated, of {known}, or 'all'")
    group.addoption("--pending", action="store_true", help="run tests of what Trivet does not do yet, too")


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "java_only: needs a Java client; runs with `make interop`",
        "core: with the Java clients a part of the normal suite, too",
        "cpp_only: about the C++ client, or needs only it",
        "go_only: about the Go client; runs with `make interop`, where Go and the client are to be had",
        "extended: runs when clients are chosen (`make interop`), not in the normal suite",
        "both_headers: runs with Java clients that write binary headers, too (`make interop`)",
        "trivet_only: about what only Trivet has, or sets up in its own way",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    of_trivet = config.getoption("--broker", default="trivet") == "trivet"
    with_pending = config.getoption("--pending", default=False)
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.interop)
        missing = PENDING.get(getattr(item, "originalname", ""))
        if item.get_closest_marker("trivet_only") and not of_trivet:
            item.add_marker(pytest.mark.skip(reason="about Trivet only"))
        if missing and of_trivet:
            item.add_marker(pytest.mark.xfail(run=with_pending, reason=f"not yet: {missing}"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes ``client_name`` runs with each chosen client (``java_only`` ones with the Java ones)."""
    if "client_name" not in metafunc.fixturenames:
        return
    # The options are unknown when the whole suite runs from the top: this file is read too late to add them.
    wanted = metafunc.config.getoption("--clients", default=DEFAULT)
    definition = metafunc.definition
    if wanted == DEFAULT:
        names = [CPP, *JAVA] if definition.get_closest_marker("core") else [CPP]
    else:
        names = (
            list(ALL_CLIENTS)
            if wanted == "all"
            else [name for name in wanted.split(",") if name not in ("", GO)]
        )
    for name in names:
        if name not in ALL_CLIENTS:
            raise pytest.UsageError(
                f"--clients: no client {name!r}; there are {', '.join((*ALL_CLIENTS, GO))}"
            )
    if definition.get_closest_marker("java_only"):
        names = [name for name in names if name in JAVA]
    if definition.get_closest_marker("cpp_only"):
        names = [name for name in names if name == CPP]
    if wanted == DEFAULT and definition.get_closest_marker("extended"):
        names = []
    if definition.get_closest_marker("both_headers") and wanted != DEFAULT:
        names += [name + BINARY for name in names if name in JAVA]
    none = pytest.param("none", marks=pytest.mark.skip(reason="needs another client: make interop"))
    older = JAVA[:-1] if wanted == DEFAULT else ()
    cases = [pytest.param(name, marks=pytest.mark.in_turn) if name in older else name for name in names]
    metafunc.parametrize("client_name", cases or [none])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.extend(section for section in evidence() if section not in report.sections)
    return report


ATTEMPTS = 4
_terms: dict[str, int] = {}
"""The term in which the shared group was whole, by its name server; empty while there is none of Trivet."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1, ATTEMPTS + 1):
        _terms.update(_terms_now())
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [report for report in reports if report.failed]
        shares = "cluster" in getattr(item, "fixturenames", ())
        if not (failed and shares and attempt < ATTEMPTS and _has_elected()):
            break
        reason = failed[0].longreprtext[-1500:]
        item.warn(pytest.PytestWarning(f"run again, since the group elected while this failed:\n{reason}"))
        item._initrequest()  # type: ignore[attr-defined]  # fixtures of the test are made anew
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _has_elected() -> bool:
    return any(_terms[server] != term for server, term in _terms_now().items())


def _terms_now() -> dict[str, int]:
    """Without that of a group whose name server does not answer, which is for the test to find out."""
    found = {}
    for server in _terms:
        with contextlib.suppress(OSError, wire.RefusedError):
            found[server] = wire.term(server)
    return found


@pytest.fixture(scope="session")
def broker_kind(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.getoption("--broker", default="trivet"))


@pytest.fixture(scope="session")
def start_cluster(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Cluster]:
    """Starts a group of the kind under test."""

    def start() -> Cluster:
        folder = tmp_path_factory.mktemp(broker_kind)
        if broker_kind == "trivet":
            return TrivetCluster(folder)
        with available():
            version = (
                artifacts.REFERENCE_VERSION_5 if broker_kind == "reference-5" else artifacts.REFERENCE_VERSION
            )
            # 5.x writes the end of a transaction up to three seconds later: a check before that repeats messages.
            settings = {"transactionTimeOut": "6000"} if broker_kind == "reference-5" else {}
            return ReferenceCluster(
                folder, 1 if broker_kind == "reference-single" else 3, settings, version=version
            )

    return start


@pytest.fixture(scope="session")
def cluster(start_cluster: Callable[[], Cluster]) -> Iterator[Cluster]:
    """One group for all tests that leave it whole."""
    running = start_cluster()
    if running.kind == "trivet":
        _terms[running.name_server] = wire.term(running.name_server)
    yield running
    _terms.clear()
    running.stop()


@pytest.fixture
def fresh_cluster(start_cluster: Callable[[], Cluster], broker_kind: str) -> Iterator[Cluster]:
    """A group for this test alone, which may kill its nodes."""
    if broker_kind == "reference-single":
        pytest.skip("a single broker has no failover")
    running = start_cluster()
    yield running
    running.stop()


Configure = Callable[..., ConfiguredCluster]


@pytest.fixture
def configure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configure]:
    """Starts groups of Trivet for this test alone, with settings of their own (`ConfiguredCluster`'s arguments)."""
    running: list[ConfiguredCluster] = []

    def start(**options: Any) -> ConfiguredCluster:
        running.append(ConfiguredCluster(tmp_path_factory.mktemp("configured"), **options))
        return running[-1]

    yield start
    for cluster in running:
        cluster.stop()


ClientOf = Callable[..., Client]


@pytest.fixture
def client_of(client_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientOf]:
    """Makes drivers of the client under test for a group that the test has started."""
    with available():
        if client_name == CPP:
            artifacts.cpp_client_path()
        else:
            artifacts.java_client_classpath(java_version(client_name))
    subjects: list[Client] = []

    def make(name_server: str, *jvm: str) -> Client:
        subjects.append(Client(client_name, name_server, tmp_path_factory.mktemp(client_name), jvm))
        return subjects[-1]

    yield make
    for subject in subjects:
        subject.stop_all()


@pytest.fixture
def client(client_of: ClientOf, cluster: Cluster) -> Client:
    """Drivers of one client against the shared group."""
    return client_of(cluster.name_server)


@pytest.fixture
def failover_client(client_of: ClientOf, fresh_cluster: Cluster) -> Client:
    """Drivers of one client against the group of this test alone."""
    return client_of(fresh_cluster.name_server)


@pytest.fixture(scope="session")
def mqadmins() -> Iterator[dict[str, Mqadmin]]:
    """The session's processes of mqadmin, by client."""
    running: dict[str, Mqadmin] = {}
    yield running
    for process in running.values():
        process.stop()


@pytest.fixture
def mqadmin(
    client: Client, mqadmins: dict[str, Mqadmin], tmp_path_factory: pytest.TempPathFactory
) -> Mqadmin:
    """mqadmin of the client's version, against the shared group."""
    if client.name not in mqadmins:
        folder = tmp_path_factory.mktemp("mqadmin")
        mqadmins[client.name] = Mqadmin(Client(client.name, client.name_server, folder))
    return mqadmins[client.name]


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of four queues for this test alone."""
    return make_topic(cluster, f"interop-{uuid.uuid4().hex[:12]}", queues=4)


@pytest.fixture
def group() -> str:
    """A consumer group for this test alone."""
    return f"group-{uuid.uuid4().hex[:12]}"


class available:
    """Turns a missing artifact into a skip; into a failure where continuous integration must have it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, artifacts.ArtifactUnavailableError):
            if os.environ.get("TRIVET_REQUIRE_INTEROP"):
                pytest.fail(str(error))
            pytest.skip(str(error))
