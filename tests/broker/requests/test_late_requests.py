"""Pulls that are done later than they came: without the position that they brought, held for the rest of their time."""

from __future__ import annotations

import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.command import JSON, decode_command, encode
from broker.remoting.frame import FrameDecoder
from broker.remoting.headers import PullMessageHeader
from broker.requests.late_requests import SUSPEND_MS_MAX, done_late, pull_header

FIELDS = (
    b'"consumerGroup":"g","topic":"T","queueId":"0","queueOffset":"0","maxMsgNums":"1","sysFlag":"%d","commitOffset":"7",'
    b'"suspendTimeoutMillis":"%d","subVersion":"0"'
)


@pytest.mark.parametrize(
    "more", [b"", b',"AccessKey":"a","lo":"false"', b',"odd":[1],"AccessKey":"a"', b',"odd":1.5']
)
@pytest.mark.parametrize("flags", [0, 1, 7])
def test_only_the_position_goes_whatever_else_a_client_has_said(flags: int, more: bytes) -> None:
    text = b'{"code":%d,"flag":0,"language":"JAVA","opaque":5,"version":409,"extFields":{%s%s}}'
    command = decode_command(JSON, text % (RequestCode.PULL_MESSAGE, FIELDS % (flags, 0), more), b"")
    late = done_late(command, pull_header(command), 1)
    assert (late.opaque, late.version) == (5, 409)
    (arrived,) = FrameDecoder().feed(encode(late))
    header = arrived.decode_fields(PullMessageHeader)
    assert (header.sys_flag, header.topic) == (flags & ~1, "T")
    if b"odd" not in more:
        assert {**arrived.fields, "sysFlag": str(flags)} == dict(command.fields)


@pytest.mark.parametrize(
    ("suspend_ms", "waited_ns", "rest_ms"),
    [
        (15_000, 0, 15_000),
        (15_000, 1, 14_999),
        (15_000, 14_000_000_000, 1_000),
        (15_000, 15_000_000_000, 0),
        (15_000, 99_000_000_000, 0),
        (1 << 40, 1_000_000_000, SUSPEND_MS_MAX - 1_000),
        (0, 1_000_000_000, 0),
        (-1, 1_000_000_000, -1),
    ],
)
@pytest.mark.parametrize("more", [b"", b',"odd":1.5'])
def test_what_it_has_waited_counts(suspend_ms: int, waited_ns: int, rest_ms: int, more: bytes) -> None:
    text = b'{"code":11,"flag":0,"language":"JAVA","opaque":5,"version":409,"extFields":{%s%s}}'
    command = decode_command(JSON, text % (FIELDS % (3, suspend_ms), more), b"")
    (arrived,) = FrameDecoder().feed(encode(done_late(command, pull_header(command), waited_ns)))
    assert arrived.decode_fields(PullMessageHeader).suspend_timeout_ms == rest_ms
    assert command.decode_fields(PullMessageHeader).suspend_timeout_ms == suspend_ms
