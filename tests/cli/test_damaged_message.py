"""``trivet consume`` and a message that nobody can read: said so, and no reason to stop."""

import json

import pytest

from broker.client.errors import DamagedMessage
from broker.client.message import MessageQueue, MessageView
from broker.tools.cli.messages import _print_message
from log.formats.record import SYS_FLAG_COMPRESSED, encode_record, pack_host


def _message(sys_flag: int) -> MessageView:
    host = pack_host("127.0.0.1", 1)
    record = encode_record(b"T", 0, 0, 7, 48, sys_flag, 1, host, 2, host, 0, 0, b"plain bytes", b"")
    return MessageView(MessageQueue("T", "b", 0), record)


def test_it_is_reported_and_the_next_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    damaged = _message(SYS_FLAG_COMPRESSED)
    with pytest.raises(DamagedMessage):
        _ = damaged.body
    _print_message(damaged, as_json=False)
    _print_message(_message(0), as_json=False)
    printed = capfdbinary.readouterr()
    assert printed.out == b"plain bytes\n"
    assert b"passed over" in printed.err
    assert b"cannot be unpacked" in printed.err


def test_json_has_the_reason_in_place_of_the_body(capsys: pytest.CaptureFixture[str]) -> None:
    _print_message(_message(SYS_FLAG_COMPRESSED), as_json=True)
    fields = json.loads(capsys.readouterr().out)
    assert "body" not in fields
    assert "cannot be unpacked" in fields["damaged"]
    assert fields["offset"] == 7
