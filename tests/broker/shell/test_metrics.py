"""The metrics of a node, as Prometheus reads them."""

from urllib.request import urlopen

from broker.shell.metrics import MetricsServer
from tests.broker.harness import Group


def test_a_scrape_shows_role_indices_and_counts() -> None:
    group = Group(1)
    group.elect()
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"one")
    node = group.node(group.leader)
    with (
        MetricsServer(node, "127.0.0.1:0", lambda: 4e9) as server,
        urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer,
    ):
        text = answer.read().decode()
    labels = f'{{group="{node.group}",node="{node.replica.node_id}"}}'
    assert f"trivet_certificate_expires_seconds{labels} 4e+09" in text
    assert f"trivet_serving{labels} 1.0" in text
    assert f"trivet_messages_put_total{labels} 1.0" in text
    assert f"trivet_commit_index{labels} {float(node.replica.raft.commit_index)}" in text
    assert f"trivet_client_connections{labels} 1.0" in text
