"""Pulls that are done later than they came: without the position that they brought, and otherwise as they are."""

from __future__ import annotations

import pytest

from broker.late_positions import without_late_position
from broker.remoting.codes import RequestCode
from broker.remoting.command import JSON, decode_command, encode
from broker.remoting.frame import FrameDecoder
from broker.remoting.headers import PullMessageHeader

FIELDS = (
    b'"consumerGroup":"g","topic":"T","queueId":"0","queueOffset":"0","maxMsgNums":"1","sysFlag":"%d","commitOffset":"7",'
    b'"suspendTimeoutMillis":"0","subVersion":"0"'
)


@pytest.mark.parametrize(
    "more", [b"", b',"AccessKey":"a","lo":"false"', b',"odd":[1],"AccessKey":"a"', b',"odd":1.5']
)
@pytest.mark.parametrize("flags", [0, 1, 7])
def test_only_the_position_goes_whatever_else_a_client_has_said(flags: int, more: bytes) -> None:
    text = b'{"code":%d,"flag":0,"language":"JAVA","opaque":5,"version":409,"extFields":{%s%s}}'
    command = decode_command(JSON, text % (RequestCode.PULL_MESSAGE, FIELDS % flags, more), b"")
    late = without_late_position(command)
    assert (late.opaque, late.version) == (5, 409)
    (arrived,) = FrameDecoder().feed(encode(late))
    header = arrived.decode_fields(PullMessageHeader)
    assert (header.sys_flag, header.topic) == (flags & ~1, "T")
    if b"odd" not in more:
        assert {**arrived.fields, "sysFlag": str(flags)} == dict(command.fields)
