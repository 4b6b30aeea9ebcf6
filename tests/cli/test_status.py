"""``trivet status`` during an upgrade: which release each node runs, and which format its group writes."""

from __future__ import annotations

import json

import pytest

from broker.remoting.node_status import NodeStatus
from broker.state.release import THIS_RELEASE
from broker.tools.cluster import asking
from broker.tools.cluster.asking import AskedBroker
from tests.cli.conftest import CommandLine


def _answers(monkeypatch: pytest.MonkeyPatch, releases: dict[str, str]) -> None:
    """Has each node say that it runs its release; the first one leads."""
    leader = next(iter(releases))
    brokers = [
        AskedBroker(
            group="broker-a",
            address=f"127.0.0.1:{number}",
            status=NodeStatus(
                node=node,
                group="broker-a",
                role="leader" if node == leader else "follower",
                term=1,
                leader=leader,
                commit_index=7,
                applied_index=7,
                first_index=0,
                last_index=7,
                last_position=900,
                serving=node == leader,
                release=release,
                format=2,
            ),
            error=None,
        )
        for number, (node, release) in enumerate(releases.items(), 10911)
    ]
    monkeypatch.setattr(asking, "registered_brokers", lambda *_, **__: brokers)


def test_json_says_release_and_format_of_each_node(
    monkeypatch: pytest.MonkeyPatch, trivet: CommandLine
) -> None:
    _answers(monkeypatch, {"n0": "0.2.0", "n1": "0.2.0"})
    nodes = json.loads(trivet("status", "--json").out)["nodes"]
    assert [(node["release"], node["format"]) for node in nodes] == [("0.2.0", 2)] * 2


@pytest.mark.parametrize(("other", "is_shown"), [("0.1.9", True), ("0.2.0", False)])
def test_table_says_them_where_nodes_differ(
    monkeypatch: pytest.MonkeyPatch, trivet: CommandLine, other: str, is_shown: bool
) -> None:
    _answers(monkeypatch, {"n0": "0.2.0", "n1": other})
    out = trivet("status").out
    assert ("release" in out and "format" in out) == is_shown
    assert ("0.1.9" in out) == is_shown


def test_version_says_which_other_releases_it_goes_with(trivet: CommandLine) -> None:
    release = THIS_RELEASE
    assert trivet("--version").out.strip() == (
        f"{release.name}, protocols {release.oldest_protocol} to {release.newest_protocol}, "
        f"formats 1 to {release.newest_format}"
    )
