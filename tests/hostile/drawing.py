"""Well-framed requests of every code whose fields and bodies nobody would send in good faith.

    drawing = Drawing(Random(7), MINE, signs=None)
    frame = drawing.request(RequestCode.PULL_MESSAGE, opaque=1)

Of each code the fields are known (`HEADERS`), and of most bodies their type (`BODIES`). Most values fit, so that
requests come past the first checks; the others are missing, empty, negative, huge, of another type or alphabet, or the
names of what is somebody else's or the broker's own. What is drawn depends on the random numbers alone.
"""

from __future__ import annotations

import enum
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from broker.administration.backup_processor import BackupBeginHeader, BackupLogHeader, BackupSnapshotHeader
from broker.administration.group_changes_processor import ChangeGroupHeader, TransferLeadershipHeader
from broker.remoting import admin_headers as admin
from broker.remoting import bodies, headers
from broker.remoting import name_server_headers as names
from broker.remoting.codes import RequestCode, Version
from broker.remoting.command import JSON, ROCKETMQ, RemotingCommand, encode, request, response
from broker.remoting.register_body import TOPICS_AT_ONCE, RegisterBrokerBody, body_crc
from broker.remoting.route import TopicRouteData
from log.formats.batch import BatchItem, encode_batch

_C = RequestCode

HEADERS: Final[Mapping[int, type[msgspec.Struct]]] = {
    _C.SEND_MESSAGE: headers.SendMessageHeader,
    _C.SEND_MESSAGE_V2: headers.SendMessageHeaderV2,
    _C.SEND_BATCH_MESSAGE: headers.SendMessageHeaderV2,
    _C.SEND_REPLY_MESSAGE: headers.SendMessageHeader,
    _C.SEND_REPLY_MESSAGE_V2: headers.SendMessageHeaderV2,
    _C.CONSUMER_SEND_MSG_BACK: headers.ConsumerSendMessageBackHeader,
    _C.PULL_MESSAGE: headers.PullMessageHeader,
    _C.LITE_PULL_MESSAGE: headers.PullMessageHeader,
    _C.TRIVET_BEGIN_PORTION: headers.PortionHeader,
    _C.TRIVET_END_PORTION: headers.PortionHeader,
    _C.QUERY_MESSAGE: headers.QueryMessageHeader,
    _C.VIEW_MESSAGE_BY_ID: headers.ViewMessageHeader,
    _C.QUERY_CONSUMER_OFFSET: headers.QueryConsumerOffsetHeader,
    _C.UPDATE_CONSUMER_OFFSET: headers.UpdateConsumerOffsetHeader,
    _C.GET_MAX_OFFSET: headers.QueueHeader,
    _C.GET_MIN_OFFSET: headers.QueueHeader,
    _C.GET_EARLIEST_MSG_STORETIME: headers.QueueHeader,
    _C.SEARCH_OFFSET_BY_TIMESTAMP: headers.SearchOffsetHeader,
    _C.CLONE_GROUP_OFFSET: admin.CloneGroupOffsetHeader,
    _C.INVOKE_BROKER_TO_RESET_OFFSET: admin.ResetOffsetHeader,
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: admin.GetConsumerStatusHeader,
    _C.GET_CONSUMER_RUNNING_INFO: admin.GetConsumerRunningInfoHeader,
    _C.CONSUME_MESSAGE_DIRECTLY: admin.ConsumeMessageDirectlyHeader,
    _C.UNREGISTER_CLIENT: headers.UnregisterClientHeader,
    _C.GET_CONSUMER_LIST_BY_GROUP: headers.GetConsumerListByGroupHeader,
    _C.END_TRANSACTION: headers.EndTransactionHeader,
    _C.RESUME_CHECK_HALF_MESSAGE: admin.ResumeCheckHalfMessageHeader,
    _C.UPDATE_AND_CREATE_TOPIC: admin.CreateTopicHeader,
    _C.DELETE_TOPIC_IN_BROKER: admin.TopicHeader,
    _C.GET_TOPIC_CONFIG: admin.TopicHeader,
    _C.DELETE_SUBSCRIPTIONGROUP: admin.DeleteSubscriptionGroupHeader,
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: admin.GroupHeader,
    _C.GET_TOPIC_STATS_INFO: admin.TopicHeader,
    _C.GET_CONSUME_STATS: admin.GetConsumeStatsHeader,
    _C.GET_CONSUMER_CONNECTION_LIST: admin.ConsumerGroupHeader,
    _C.GET_PRODUCER_CONNECTION_LIST: admin.ProducerGroupHeader,
    _C.QUERY_TOPIC_CONSUME_BY_WHO: admin.TopicHeader,
    _C.QUERY_TOPICS_BY_CONSUMER: admin.GroupHeader,
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.QuerySubscriptionHeader,
    _C.QUERY_CONSUME_TIME_SPAN: admin.ConsumeTimeSpanHeader,
    _C.QUERY_CORRECTION_OFFSET: admin.CorrectionOffsetHeader,
    _C.GET_BROKER_CONSUME_STATS: admin.BrokerConsumeStatsHeader,
    _C.QUERY_CONSUME_QUEUE: admin.QueryConsumeQueueHeader,
    _C.VIEW_BROKER_STATS_DATA: admin.ViewBrokerStatsHeader,
    _C.TRIVET_CHANGE_GROUP: ChangeGroupHeader,
    _C.TRIVET_TRANSFER_LEADERSHIP: TransferLeadershipHeader,
    _C.TRIVET_BACKUP_BEGIN: BackupBeginHeader,
    _C.TRIVET_BACKUP_LOG: BackupLogHeader,
    _C.TRIVET_BACKUP_SNAPSHOT: BackupSnapshotHeader,
    _C.GET_ROUTEINFO_BY_TOPIC: names.GetRouteHeader,
    _C.REGISTER_BROKER: names.RegisterBrokerHeader,
    _C.UNREGISTER_BROKER: names.BrokerIdentityHeader,
    _C.QUERY_DATA_VERSION: names.BrokerIdentityHeader,
    _C.BROKER_HEARTBEAT: names.BrokerHeartbeatHeader,
    _C.GET_BROKER_MEMBER_GROUP: names.BrokerMemberGroupHeader,
    _C.GET_TOPICS_BY_CLUSTER: names.TopicsByClusterHeader,
    _C.WIPE_WRITE_PERM_OF_BROKER: names.BrokerNameHeader,
    _C.ADD_WRITE_PERM_OF_BROKER: names.BrokerNameHeader,
    _C.DELETE_TOPIC_IN_NAMESRV: names.DeleteTopicHeader,
    _C.REGISTER_TOPIC_IN_NAMESRV: names.RegisterTopicHeader,
    _C.PUT_KV_CONFIG: names.PutKeyValueHeader,
    _C.GET_KV_CONFIG: names.KeyValueHeader,
    _C.DELETE_KV_CONFIG: names.KeyValueHeader,
    _C.GET_KVLIST_BY_NAMESPACE: names.NamespaceHeader,
}
"""The fields of each request that has some."""

BODIES: Final[Mapping[int, type[msgspec.Struct]]] = {
    _C.HEART_BEAT: bodies.HeartbeatData,
    _C.CHECK_CLIENT_CONFIG: bodies.CheckClientConfigBody,
    _C.LOCK_BATCH_MQ: bodies.LockBatchBody,
    _C.UNLOCK_BATCH_MQ: bodies.LockBatchBody,
    _C.UPDATE_AND_CREATE_TOPIC_LIST: bodies.TopicConfigList,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: bodies.SubscriptionGroupConfig,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: bodies.SubscriptionGroupList,
    _C.QUERY_DATA_VERSION: bodies.DataVersion,
    _C.REGISTER_TOPIC_IN_NAMESRV: TopicRouteData,
    _C.REGISTER_BROKER: RegisterBrokerBody,
}
"""The bodies that are JSON."""


class ConsumerStatus(msgspec.Struct, rename="camel"):
    """A consumer's answer to 221; the keys are queues as JSON texts."""

    message_queue_table: dict[str, int]


ANSWERS: Final[Mapping[int, type[msgspec.Struct]]] = {
    _C.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatus,
}
"""The bodies of answers to what nodes ask consumers, as far as these are read and not passed on."""

_HOSTILE_TEXTS: Final = (
    "", " ", "\x00", "null", "true", "-1", "0", "1e9", "1.5", "NaN", "0x10", "٣", "𐀀", "\ud7ff", "a" * 127, "b" * 255,
    "c" * 300, "d" * 30_000, "../../etc/passwd", "a/b", "%", "%RETRY%", "%DLQ%", "%RETRY%" + "e" * 250, "TBW102",
    "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC", "TRIVET_SYS_RAFT_LOG", "OFFSET_MOVED_EVENT", "CID_RMQ_SYS_TRANS",
    "DefaultCluster", "%s%n{}", "\u202e\u200b", "K\x01V\x02", "SQL92", "n0", "::1", "127.0.0.1:0", "host:99999",
)  # fmt: skip
_HOSTILE_NUMBERS: Final = (
    -1, -2, 0, 1, 2, 127, 255, 65_535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63), 2**63, 10**19,
    10**40,
)  # fmt: skip
_PROPERTIES: Final = (
    "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS",
    "TIMER_DEL_UNIQKEY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT",
    "POP_CK", "CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "INNER_NUM", "a", "SHARDING_KEY",
)  # fmt: skip
_ZLIB: Final = b"\x78"
"""The first byte of what zlib has compressed."""
_PROPERTY_VALUES: Final = ("true", "k1 k2", "x", "", " ", "\x01", "c1", "1700000000500")
_EXPRESSIONS: Final = (
    "*", "", "a || b", "||", "a||" * 400, "a > 5", "a = 'x' AND b IS NOT NULL", "a IN ('x','y')",
    "(" * 70 + "a" + ")" * 70,
    "a BETWEEN 1 AND", "NOT " * 3000 + "a", "a = 1 OR " * 900 + "a = 2", "'", "/*", "--", "a CONTAINS 'b", "1" * 5000,
    "a > 1e999", "a > " + "9" * 400, "x" * 9000,
)  # fmt: skip


_LONG_DIGITS: Final = (400, 4_300, 4_301, 9_000)
"""Python reads no number of more than 4,300 digits."""


@dataclass(frozen=True)
class Raw:
    """JSON that stands for itself: nested deeper than Python's stack reaches, or a number that Python does not make."""

    text: bytes


@dataclass(frozen=True)
class Names:
    """What a drawing takes for its own, and which names of others it may name, too."""

    topics: tuple[str, ...] = ("F0", "F1", "F2")
    groups: tuple[str, ...] = ("FG0", "FG1")
    brokers: tuple[str, ...] = ("fuzz-broker", "fuzz-broker-2")
    others: tuple[str, ...] = ()


class Drawing:
    """Draws requests. `sign` is given the fields and body of those that are signed, and returns the fields."""

    def __init__(
        self,
        random: Random,
        names: Names,
        sign: Callable[[dict[str, str], bytes], dict[str, str]] | None = None,
    ) -> None:
        self.random = random
        self._names = names
        self._sign = sign

    def request(self, code: int, opaque: int) -> bytes:
        """The frame of a request."""
        random = self.random
        fields = self._fields(code)
        body = self._body(code)
        if code == RequestCode.REGISTER_BROKER and random.random() < 0.7:
            fields["bodyCrc32"] = str(body_crc(body))
            fields["compressed"] = "true" if body.startswith(_ZLIB) else "false"
        texts = {name: value for name, value in fields.items() if isinstance(value, str)}
        if self._sign is not None and random.random() < 0.9:
            fields |= self._sign(texts, body) if len(texts) == len(fields) else {}
        flag = random.choices((0, 2, 1, 3, random.randrange(-(2**31), 2**31)), (88, 6, 3, 1, 2))[0]
        serialization = ROCKETMQ if code <= 32767 and random.random() < 0.4 else JSON
        if serialization == JSON and random.random() < 0.5:
            return self._bare(code, flag, opaque, fields, body)
        command = request(code, texts, body, opaque=opaque, serialization=serialization)
        command.flag = flag
        command.remark = random.choice((None, None, None, "", self._text()))
        command.version = random.choice((401, 455, 0, -1, 233, 32767))
        command.language = random.choice(("JAVA", "JAVA", "CPP", "PYTHON", "no language"))
        return encode(command)

    def _bare(self, code: int, flag: int, opaque: int, fields: dict[str, Any], body: bytes) -> bytes:
        """A JSON header as no library writes it: bare values, keys in any order, some of them twice."""
        random = self.random
        if fields and random.random() < 0.05:
            fields = {**fields, random.choice(list(fields)): self._deep()}
        pairs = [("code", code), ("flag", flag), ("opaque", opaque), ("extFields", fields)]
        pairs += random.choice(
            (
                [],
                [("x", self._deep())] if random.random() < 0.1 else [],
                [("language", 3)],
                [("version", 2**31 - 1), ("x", [1, {}])],
                [("remark", "r")],
            )
        )
        if random.random() < 0.1:
            pairs[3] = (
                "extFields",
                random.choice(
                    (None, {}, [], "text", 5, {"a": {"b": []}}, {"a": 10**30}, {**fields, "a": self._deep()})
                ),
            )
        random.shuffle(pairs)
        text = b",".join(msgspec.json.encode(name) + b":" + _json(value) for name, value in pairs)
        header = b"{" + text + b"}"
        return (
            (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
        )

    def answer(self, question: RemotingCommand) -> bytes:
        """The frame of an answer to what a node asks a client."""
        random = self.random
        kind = ANSWERS.get(question.code)
        body = b"" if kind is None else _json(self._value("", kind, 0))
        answer = response(question, random.choice((0, 0, 0, 1, 206)), self._text(), body=self._damaged(body))
        return encode(answer)

    # ------------------------------------------------------------------ fields

    def _fields(self, code: int) -> dict[str, Any]:
        header = HEADERS.get(code)
        random = self.random
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(header) if header is not None else ():
            if random.random() < (0.04 if field.required else 0.4):
                continue
            fields[field.encode_name] = self._field(field.name, field.type)
        if random.random() < 0.05:
            fields |= {self._text()[:50]: self._text() for _ in range(random.randrange(1, 40))}
        return fields

    def _field(self, name: str, kind: Any) -> Any:
        random = self.random
        chance = random.random()
        if chance < 0.06:
            return self._text()
        if chance < 0.12:
            return str(random.choice(_HOSTILE_NUMBERS))
        if chance < 0.14:
            return random.choice((None, True, False, 7, -1, 1.5, 10**30, [], {}, ["a"], self._deep()))
        value = self._fitting(name, kind)
        return ("true" if value else "false") if isinstance(value, bool) else str(value)

    def _text(self) -> str:
        return self.random.choice(
            (*_HOSTILE_TEXTS, *self._names.others, self._properties(), self._digits(), self._key())
        )

    def _digits(self) -> str:
        random = self.random
        return random.choice(("", "", "-", "0.", "1e")) + "9" * random.choice(_LONG_DIGITS)

    def _deep(self) -> Raw:
        """Lists or objects within each other, closed or not, or a number of very many digits.

        Around a thousand is how deep Python reads, less the calls that are under way where it does.
        """
        random = self.random
        if random.random() < 0.2:
            return Raw(self._digits().encode())
        depth = random.choice((40, 127, *(random.randrange(850, 1_000) for _ in range(3)), 5_000, 50_000))
        begin, end = random.choice(
            ((b"[", b"]"), (b"[", b"]"), (b'{"":', b"}"), (b'["",', b"]"), (b'{"a":[', b"]}"))
        )
        return Raw(begin * depth + b"1" + random.choice((b"", end * depth)))

    def _key(self) -> str:
        """The name of a member that is to be an object, written as text, as RocketMQ has queues in maps."""
        begin = '{"brokerName":"b","queueId":0,"topic":"T"'
        return begin + self.random.choice(("}", "", ',"x":' + self._deep().text.decode()))

    def _name(self, own: tuple[str, ...]) -> str:
        random = self.random
        if random.random() < 0.15:
            return random.choice((*self._names.others, *_HOSTILE_TEXTS))
        return random.choice(own)

    def _fitting(self, name: str, kind: Any) -> Any:
        """A value for a field or a member of a body, by its name and type, that may well be taken."""
        random = self.random
        kind = _plain(kind)
        if name == "properties":
            return self._properties()
        if name in ("subscription", "sub_string", "expression"):
            return random.choice(_EXPRESSIONS)
        if name == "expression_type":
            return random.choice(("TAG", "SQL92", "tag", "X"))
        if kind is str:
            if "topic" in name:
                retry = f"%RETRY%{random.choice(self._names.groups)}"
                return retry if random.random() < 0.1 else self._name(self._names.topics)
            if "group" in name:
                return self._name(self._names.groups)
            if "broker" in name or "cluster" in name:
                return self._name(self._names.brokers)
            if "id" in name.lower():
                return random.choice(
                    ("AC11000100002A9F0000000000000001", "7F00000100002710" + "0" * 15 + "8", "x", "c1")
                )
            if "address" in name or "addr" in name:
                return random.choice(("10.0.0.9:10911", "[::1]:1", "x", "10.0.0.9:99999"))
            return self._text()
        if kind is bool:
            return random.random() < 0.5
        if kind is int:
            if "timestamp" in name or name.endswith("time"):
                return random.choice((0, 1_700_000_000_000, 1_700_001_000_500, 2**62))
            if "offset" in name:
                return random.choice((0, 1, 2, 10, 116, 1 << 20, 10**12))
            if "suspend" in name:
                return random.choice((0, 1, 15_000, 30_000, 10**12))
            return random.choice((0, 1, 2, 3, 4, 6, 16, 32, 1024))
        if kind is float:
            return random.choice((0.0, 1.5, -1.0, 1e300))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return random.choice(list(kind)).value
        return self._value(name, kind, 0)

    def _properties(self) -> str:
        random = self.random
        own = (*self._names.topics, *self._names.groups)
        parts = []
        for _ in range(random.choice((0, 1, 1, 2, 3, 40))):
            name = random.choice(_PROPERTIES)
            drawn = (str(random.choice(_HOSTILE_NUMBERS)), random.choice(own), "z" * random.choice((1, 300)))
            value = random.choice((*drawn, *_PROPERTY_VALUES))
            parts.append(f"{name}\x01{value}\x02")
        text = "".join(parts)
        return text[:-1] if random.random() < 0.1 else text

    # ------------------------------------------------------------------ bodies

    def _body(self, code: int) -> bytes:
        random = self.random
        if random.random() < 0.08:
            return random.choice(
                (
                    *(b"", b"{", b"[]", b"{}", b"null", b"[" * 3000, b"{0:1}", random.randbytes(50)),
                    *(b'{"a":' * 90, b'{"a":%b}' % self._deep().text, self._deep().text),
                )
            )
        if code == RequestCode.SEND_BATCH_MESSAGE:
            return self._batch()
        kind = BODIES.get(code)
        if kind is not None:
            text = _json(self._value("", kind, 0))
            if code == RequestCode.REGISTER_BROKER and random.random() < 0.3:
                text = self._compressed(text)
            return self._damaged(text)
        if code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
            name = random.choice(
                ("brokerPermission", "x", "autoCreateTopicEnable", "orderMessageEnable", "fileReservedTime")
            )
            value = self._text()
            if name == "brokerPermission" and value == "0":
                value = "6"  # without accounts anybody may shut a broker, and it is shut for all then
            return f"{name}={value}\n".encode(errors="replace")
        return random.choice((b"", b"body", random.randbytes(random.choice((1, 100, 5000)))))

    def _compressed(self, text: bytes) -> bytes:
        """A registration's compressed body, or what is none; some unfold to thousands of topics."""
        random = self.random
        return random.choice(
            (
                lambda: zlib.compress(text),
                lambda: RegisterBrokerBody().encode_compressed(Version.V5_0_0),
                lambda: zlib.compress(bytes(1 << 20)),
                lambda: unfolding(random.choice((100, TOPICS_AT_ONCE, 3 * TOPICS_AT_ONCE))),
            )
        )()

    def _batch(self) -> bytes:
        random = self.random
        items = [
            BatchItem(
                random.choice((0, 1, -1)), random.randbytes(random.randrange(30)), self._properties().encode()
            )
            for _ in range(random.choice((1, 2, 5, 60)))
        ]
        return self._damaged(encode_batch(items))

    def _damaged(self, data: bytes) -> bytes:
        random = self.random
        if not data or random.random() < 0.85:
            return data
        at = random.randrange(len(data))
        return random.choice(
            (data[:at], data[:at] + bytes([random.randrange(256)]) + data[at + 1 :], data + data)
        )

    def _value(self, name: str, kind: Any, depth: int) -> Any:
        """A JSON value for a member of a body, of its type more often than not."""
        random = self.random
        kind = _plain(kind)
        chance = random.random()
        if chance < 0.02:
            return random.choice(
                (None, [], {}, "", 0, -1, 1.5, True, 10**40, "x" * 70_000, [[]] * 100, self._deep())
            )
        if chance < 0.05:
            return random.choice((*_HOSTILE_NUMBERS, *_HOSTILE_TEXTS))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {
                field.encode_name: self._value(field.name, field.type, depth + 1)
                for field in msgspec.structs.fields(kind)
                if random.random() > (0.03 if field.required else 0.3)
            }
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        count = random.choice((0, 1, 1, 2, 3, 30 if depth < 2 else 3))
        if origin in (list, tuple, set, frozenset):
            return [self._value(name, arguments[0], depth + 1) for _ in range(count)]
        if origin is dict:
            keyed = 0.5 if name == "message_queue_table" else 0.1
            return {
                (
                    self._key() if random.random() < keyed else str(self._fitting("topic", arguments[0]))
                ): self._value(name, arguments[1], depth + 1)
                for _ in range(count)
            }
        if kind in (str, int, bool, float) or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
            return self._fitting(name, kind)
        return random.choice((None, "x", 1, {}))


def unfolding(count: int) -> bytes:
    """The compressed body of a registration that names one topic so many times, in a hundred bytes or little more."""
    topic = _item(b"unfolded 1 1 6 SINGLE_TAG")
    body = _item(b'{"timestamp":0,"counter":0}') + count.to_bytes(4, "big") + topic * count + _item(b"[]")
    return zlib.compress(body + bytes(4), 9)


def _item(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _plain(kind: Any) -> Any:
    """A type without annotations, and without the other members of a union."""
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated or origin in (typing.Union, types.UnionType):
            kind = typing.get_args(kind)[0]
        else:
            return kind


def _json(value: Any) -> bytes:
    """JSON of a value; numbers may have any length."""
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return msgspec.json.encode(value)
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return (
            b"{"
            + b",".join(msgspec.json.encode(name) + b":" + _json(one) for name, one in value.items())
            + b"}"
        )
    return b"[" + b",".join(map(_json, value)) + b"]"
