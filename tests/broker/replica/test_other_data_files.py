"""A node whose data files have another size than those of its group: told in words, and of no harm to the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog

from broker.remoting.codes import ResponseCode
from tests.broker.harness import SMALL_STORE, Group

FILE = 32 * 1024


@pytest.mark.parametrize("leads", [True, False], ids=["leads", "follows"])
@pytest.mark.parametrize("other", [FILE // 2, 2 * FILE], ids=["shorter", "longer"])
def test_a_node_with_other_data_files_is_told_of_and_harms_nobody(other: int, leads: bool) -> None:
    group = Group(start=False, options=replace(SMALL_STORE, data_file_bytes=FILE))
    for node_id in group.members:
        group.options = replace(SMALL_STORE, data_file_bytes=other if node_id == "n0" else FILE)
        group.start(node_id)
    if group.elect() != (leader := "n0" if leads else "n1"):
        group.transfer_leadership(leader)
    acknowledged = []
    with structlog.testing.capture_logs() as logs:
        client = group.connect("n1")
        client.create_topic("T")
        for number in range(80):
            sent = client.wait(client.start_send("T", bytes([number]) * 1000))
            if sent.code == ResponseCode.SUCCESS:
                acknowledged.append(number)
            else:
                assert "outcome is unknown" in (sent.remark or ""), "its leader was lost"
        group.advance(5)
    assert len(acknowledged) >= 75
    assert group.leader in {"n1", "n2"}
    assert len(group.alive()) == 3
    odd, *others = (group.node(node_id).replica.store.log for node_id in group.members)
    assert len({(log.last_index, log.end_position) for log in others}) == 1
    assert odd.end_position <= max(other, FILE) < others[0].end_position
    told = [f"{entry.get('detail')}" for entry in logs if entry["event"] == "link of a peer closed"]
    assert any("storage.data_file_bytes must be the same on all nodes" in detail for detail in told)
    read: list[int] = []
    while (pulled := client.pull("T", "G", len(read))).records:
        read += [record.body[0] for record in pulled.records]
    assert set(acknowledged) <= set(read)
