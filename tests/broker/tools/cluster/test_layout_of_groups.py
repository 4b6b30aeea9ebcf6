"""Several groups over the same machines: each machine has a node of every group, and leaders are spread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.settings.loading import load
from broker.tools.cluster.layout import Layout, LocalClusterOptions


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    """Three groups on three machines."""
    layout = Layout(LocalClusterOptions(tmp_path, nodes=3, groups=3))
    yield layout
    layout.release()


def test_each_machine_has_a_node_of_each_group(layout: Layout) -> None:
    assert sorted(layout.nodes) == sorted(
        f"n{group}{machine}" for group in ("", 10, 20) for machine in range(3)
    )
    for machine in range(3):
        assert [node.group for node in layout.on_machine(machine)] == ["broker-a", "broker-b", "broker-c"]
    ports = [address for node in layout.nodes.values() for address in (node.address, node.peer_address)]
    assert len(set(ports)) == len(ports)


def test_groups_know_their_own_nodes_and_prefer_leaders_on_different_machines(layout: Layout) -> None:
    preferred = {}
    for node in layout.nodes.values():
        settings = load(node.settings_path)
        assert settings.node.group == node.group
        assert sorted(settings.raft.peers) == sorted(other.id for other in layout.members(node.group))
        preferred[node.group] = settings.raft.preferred_leaders
    assert preferred == {"broker-a": ("n0",), "broker-b": ("n101",), "broker-c": ("n202",)}


def test_a_node_joins_its_own_group(layout: Layout) -> None:
    joined = layout.add_machine()[1]
    assert (joined.id, joined.group, joined.machine) == ("n103", "broker-b", 3)
    assert sorted(joined.settings.raft.peers) == ["n100", "n101", "n102", "n103"]


def test_a_machine_goes_and_another_one_comes(layout: Layout) -> None:
    assert [node.id for node in layout.add_machine()] == ["n3", "n103", "n203"]
    for node in layout.on_machine(1):
        layout.discard(node.id)
    layout.write_peers()
    # Whom its group preferred is gone: a settings file that names it would be refused at the next start.
    preferred = {
        node.group: load(node.settings_path).raft.preferred_leaders for node in layout.nodes.values()
    }
    assert preferred == {"broker-a": ("n0",), "broker-b": (), "broker-c": ("n202",)}
    assert [node.id for node in layout.add_machine()] == ["n4", "n104", "n204"]


def test_one_group_is_as_it_was(tmp_path: Path) -> None:
    layout = Layout(LocalClusterOptions(tmp_path, nodes=3))
    layout.release()
    assert list(layout.nodes) == ["n0", "n1", "n2"]
    assert all(node.settings.raft.preferred_leaders == () for node in layout.nodes.values())
