"""Messages as people see them in a list: two lines each, whatever their senders wrote."""

import pytest

from broker.client.message import MessageQueue, MessageView
from broker.operations.queue_browsing import stored_message
from broker.tools.cli.message_output import print_message
from log.formats.record import encode_record, pack_host


def test_a_body_cannot_change_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    host = pack_host("127.0.0.1", 1)
    body, properties = b"\x1b[2J{\n  1\n}", "KEYS\x01k\x9b31m\x02".encode()
    record = encode_record(b"T", 0, 0, 7, 48, 0, 1, host, 2, host, 0, 0, body, properties)
    print_message(stored_message(MessageView(MessageQueue("T", "b", 0), record)))
    place, shown = capsys.readouterr().out.splitlines()
    assert "b/0@7" in place
    assert place.endswith(r"k\x9b31m")
    assert shown == r"    \x1b[2J{\n  1\n}"
