"""``trivet consume`` and a message that nobody can read: said so, and no reason to stop."""

import json

import pytest

from broker.client.errors import DamagedMessage
from broker.client.message import MessageQueue, MessageView
from broker.operations.queue_browsing import stored_message
from broker.operations.waiting_messages import WaitingMessage
from broker.tools.cli.message_output import print_message
from broker.tools.cli.messages import _print_message
from broker.tools.cli.single_messages import _waiting_row
from log.formats.record import SYS_FLAG_COMPRESSED, encode_record, pack_host


def _message(sys_flag: int) -> MessageView:
    host = pack_host("127.0.0.1", 1)
    record = encode_record(b"T", 0, 0, 7, 48, sys_flag, 1, host, 2, host, 0, 0, b"plain bytes", b"")
    return MessageView(MessageQueue("T", "b", 0), record)


def _unreadable() -> MessageView:
    message = _message(0)
    record = bytearray(message.record_bytes())
    record[4] ^= 1  # the magic number
    return MessageView(message.queue, bytes(record))


def test_it_is_reported_and_the_next_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    damaged = _message(SYS_FLAG_COMPRESSED)
    with pytest.raises(DamagedMessage):
        _ = damaged.body
    _print_message(damaged, as_json=False)
    _print_message(_unreadable(), as_json=False)
    _print_message(_message(0), as_json=False)
    printed = capfdbinary.readouterr()
    assert printed.out == b"plain bytes\n"
    assert printed.err.count(b"passed over") == 2
    assert b"cannot be unpacked" in printed.err


def test_json_has_the_reason_in_place_of_the_body(capsys: pytest.CaptureFixture[str]) -> None:
    _print_message(_message(SYS_FLAG_COMPRESSED), as_json=True)
    fields = json.loads(capsys.readouterr().out)
    assert "body" not in fields
    assert "cannot be unpacked" in fields["damaged"]
    assert fields["offset"] == 7


def test_json_of_one_that_tells_nothing_has_its_queue_and_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_message(_unreadable(), as_json=True)
    fields = json.loads(capsys.readouterr().out)
    assert "magic number" in fields.pop("damaged")
    assert fields == {"topic": "T", "broker": "b", "queue": 0}


def test_a_list_goes_on_behind_one_that_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for message in (_unreadable(), _message(0)):
        print_message(stored_message(message))
    place, reason, next_place, body = capsys.readouterr().out.splitlines()
    assert "b/0@-1" in place
    assert place.startswith("- "), "and not as of 1970"
    assert "magic number" in reason
    assert ("b/0@7" in next_place, body.strip()) == (True, "plain bytes")


def test_what_waits_and_tells_nothing_is_said_to_be_damaged() -> None:
    whole, damaged = (
        WaitingMessage(kind="level", home="", due_ms=None, level=3, message=stored_message(message))
        for message in (_message(0), _unreadable())
    )
    assert "damaged" not in str(_waiting_row(whole))
    *unknown, reason = _waiting_row(damaged)
    assert unknown == ["-", "-", "-"]
    assert reason.startswith("damaged, in T b/0: ")
    assert "magic number" in reason
