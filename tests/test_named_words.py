"""A name in backticks, in a comment or a docstring, is one that the code has; a module that a list names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("raft", "log", "broker", "simulation", "spark_analysis", "benchmarks", "tests")
TEXT = re.compile(r'"""(.*?)"""|(#[^\n]*)', re.DOTALL)
"""Docstrings, and whatever else stands in three quotes; comments, and the rest of a line behind a # in a string."""
NAMED = re.compile(r"(?<!`)`(_{0,2}[A-Za-z][\w.]*)(?:\(\))?`(?!`)")
MODULES = re.compile(r"\bmodules? of\s(?:its|their)\sown[^:.]*:(.*?)(?:\.\n|\.$|\n\n\S|\Z)", re.DOTALL)
"""A list of modules, each in backticks, or at the beginning of an indented line."""
GIVE_BACK = re.compile(r"(?<![a-z])(give|gives|given|gave)_back")

_OTHERS = """
AbstractSendMessageProcessor AclClientRPCHook AdminBrokerProcessor Broker2Client BrokerConfig BrokerController
BrokerMetricsConstant BrokerOuterAPI ClientManageProcessor CommitLogDispatcher
CommitLogDispatcherBuildConsumeQueue ComparisonExpression ConfigManager ConsumeMessageOrderlyService
ConsumeReturnType ConsumerManageProcessor ConsumerOffsetManager DLedgerEntryCoder DefaultMQPushConsumerImpl
DefaultMessageStore DefaultRequestProcessor EndTransactionProcessor ExpressionMessageFilter IndexService
KVConfigSerializeWrapper MQClientInstance MQFaultStrategy MQVersion MessageConst MessageDecoder
MessageExtEncoder MessageSysFlag MessageUtil MixAll NettyRemotingClient PermName PlainAccessValidator
PlainPermissionManager ProducerManager PullAPIWrapper PullRequestHoldService QueryMessageProcessor
RebalanceImpl RemoteAddressStrategyFactory RemotingSerializable RemotingSysResponseCode RocketMQSerializable
RouteInfoManager SelectMessageQueueByHash SelectorParser SendMessageProcessor SendMessageRequestHeaderV2
SlaveSynchronize TimerMessageStore TopicConfigManager TopicValidator TraceDataEncoder
TransactionalMessageBridge UtilAll
bodyCrc chainCrc consumeConcurrentlyMaxSpan deleteTopicWithBrokerRegistration enableMsgTrace indexKeyHashMethod
sendLatencyFaultEnable
String hashCode _SSLSocket df finally
"""
"""Names of RocketMQ and of DLedger, the last line's of Java, Python and the system."""
OTHERS = frozenset(_OTHERS.split())


@cache
def sources() -> dict[Path, str]:
    """The text of each module."""
    return {path: path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}


@cache
def words() -> frozenset[str]:
    """The words of all code, its short strings included, and the names of modules and packages."""
    found = set(OTHERS)
    for path, text in sources().items():
        found.update(re.findall(r"\w+", TEXT.sub(" ", text)), path.relative_to(ROOT).with_suffix("").parts)
    return frozenset(found)


def told(text: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, each with the line at which it begins."""
    for match in TEXT.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1] or match[2] or ""


def unknown(text: str) -> list[str]:
    """The names in backticks of which a part is no word of the code; a class of others may name any of its parts."""
    return [
        name
        for name in NAMED.findall(text)
        if not name.endswith((".py", ".md"))
        and name.split(".")[0] not in OTHERS
        and not words().issuperset(filter(None, name.split(".")))
    ]


def listed_modules(text: str) -> list[str]:
    """The modules that a docstring lists as those that have a subject of their own."""
    return [
        name
        for part in MODULES.findall(text)
        for name in [*re.findall(r"`([a-z_]+)`", part), *re.findall(r"^    (\w+)  ", part, re.MULTILINE)]
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_in_backticks_is_one_of_the_code(room: str) -> None:
    lost = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, text in sources().items()
        if path.is_relative_to(ROOT / room)
        for line, part in told(text)
        for name in unknown(part)
    ]
    assert lost == []


def test_a_listed_module_is_there() -> None:
    lost = []
    found = 0
    for path, text in sources().items():
        for line, part in told(text):
            names = listed_modules(part)
            found += len(names)
            lost += [
                f"{path.relative_to(ROOT)}:{line}: {name}"
                for name in names
                if not (path.parent / f"{name}.py").exists()
            ]
    assert lost == []
    assert found > 10, "the lists are found"


def test_only_forwarded_requests_are_given_back() -> None:
    """The glossary (docs/architecture.md, Words): places and room are freed."""
    others = [
        str(path.relative_to(ROOT))
        for path, text in sources().items()
        if path.is_relative_to(ROOT / "broker")
        and not path.is_relative_to(ROOT / "broker/node")
        and GIVE_BACK.search(TEXT.sub(" ", text))
    ]
    assert others == []
    assert GIVE_BACK.search("self._give_back_forgotten()")


def test_what_is_not_there_is_found() -> None:
    assert unknown("as `_check_" + "properties_of` and `Replica.turn`") == ["_check_" + "properties_of"]
    assert listed_modules("has modules of its own, too: `members` (links), `room` (a full disk).") == [
        "members",
        "room",
    ]
    assert listed_modules("That stands in modules of its own:\n\n    entry_reads   which entry\n") == [
        "entry_reads"
    ]
