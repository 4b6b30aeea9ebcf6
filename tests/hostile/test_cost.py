"""What the worst frame of each request code costs a node, as CPU time for each byte beside that of plain sends.

Sends are measured in the same process, so that a slow machine changes both sides. The factor is generous: what took a
second for one frame was beyond it a hundredfold.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import msgspec
import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.command import JSON, ROCKETMQ, encode, request
from log.formats.batch import BatchItem, encode_batch
from tests.broker.fields import send_fields
from tests.broker.harness import Client, Group
from tests.hostile.drawing import BODIES, HEADERS

FACTOR = 20
CONDITION_FACTOR = 100
"""To read a condition costs more for its bytes than anything else, and it is held against messages, too. Of that each
turn is bound by `FACTOR`, as if the whole of it were."""
BODY_BYTES = 100 * 1024
LONG = "x" * 1900
SAID: dict[int, dict[str, str]] = {
    RequestCode.VIEW_BROKER_STATS_DATA: {"statsName": "TOPIC_PUT_NUMS", "statsKey": "W"}
}
"""Fields without which a request is refused before it costs anything."""
CHANGES_MEMBERS = {RequestCode.TRIVET_CHANGE_GROUP, RequestCode.TRIVET_TRANSFER_LEADERSHIP}


def fields_of(code: int, count: int) -> dict[str, str]:
    """As many fields as asked for: those of the request, which fit, then long ones that nobody knows."""
    fields: dict[str, str] = {}
    header = HEADERS.get(code)
    for field in msgspec.structs.fields(header) if header is not None else ():
        if "str" not in str(field.type):
            fields[field.encode_name] = "0"
        elif "topic" in field.name:
            fields[field.encode_name] = "T"
        elif "properties" in field.name:
            fields[field.encode_name] = "KEYS\x01" + "k " * 900 + "\x02"
        else:
            fields[field.encode_name] = "G"
    fields |= SAID.get(code, {})
    fields |= {f"f{number}": LONG for number in range(count - len(fields))}
    return fields


def bodies_of(code: int, size: int) -> Iterator[bytes]:
    """Long bodies: the shortest members that a list of the request's body may have, and what is none."""
    yield b""
    yield b"[" * size
    yield b'{"a":[' + b"[]," * (size // 3) + b"[]]}"
    yield (b"{" + b",".join(b"%d:{}" % number for number in range(size // 12)) + b"}")  # RocketMQ's dialect
    yield b'"' + b"\\" * size
    kind = BODIES.get(code)
    for field in msgspec.structs.fields(kind) if kind is not None else ():
        if "list" in str(field.type) or "dict" in str(field.type):
            name = field.encode_name.encode()
            for member in (
                b"{}",
                b'{"topic":"T","queueId":1,"brokerName":"b"}',
                b'{"groupName":"g"}',
                b'{"topicName":"T"}',
            ):
                members = b",".join([member] * (size // len(member)))
                others = b'"clientID":"c","clientId":"c","consumerGroup":"g","group":"g"'
                yield b"{" + others + b',"' + name + b'":[' + members + b"]}"
    if code == RequestCode.SEND_BATCH_MESSAGE:
        yield encode_batch([BatchItem(0, b"", b"")] * (256 * 1024 // 250))
        yield encode_batch([BatchItem(0, b"", b"KEYS\x01" + b"k " * 900 + b"\x02")] * 50)


def worst_frames(code: int, opaque: int, size: int = BODY_BYTES) -> Iterator[bytes]:
    for serialization in (JSON, ROCKETMQ) if code <= 32767 else (JSON,):
        yield encode(request(code, fields_of(code, 128), opaque=opaque, serialization=serialization))
        many = fields_of(code, 0) | {str(number): "1" for number in range(20_000)}
        yield encode(request(code, many, opaque=opaque, serialization=serialization))
        for body in bodies_of(code, size):
            yield encode(request(code, fields_of(code, 0), body, opaque=opaque, serialization=serialization))


def worst_conditions(length: int) -> Iterator[str]:
    """SQL92 conditions that take longest to read, or to hold against messages."""
    terms = (
        ("a = 1", " OR a=1"),
        ("((((a=1))))", " OR ((((a=1))))"),
        ("a IN ('x'", ",''"),
        ("a = 1 OR a = ", "-+"),
        ("b CONTAINS 'xyx'", " OR b CONTAINS 'xyx'"),
        ("NOT NOT a", " OR NOT NOT a"),
    )
    ends = {"a IN ('x'": ")", "a = 1 OR a = ": "1"}
    for begin, term in terms:
        end = ends.get(begin, "")
        yield begin + term * ((length - len(begin) - len(end)) // len(term)) + end
    yield "a" * length
    yield "a = 1 " + "/**/" * ((length - 6) // 4)
    yield "a = 1 " + "-" * (length - 6)


def filtered_pull(code: int, condition: str) -> bytes:
    fields = {
        "consumerGroup": "g",
        "topic": "S",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": condition,
        "expressionType": "SQL92",
    }
    return encode(request(code, fields, opaque=1))


class DeafEnd:
    """The end of a client that does not look at its answers."""

    def receive(self, data: bytes) -> None:
        """Takes bytes from the node."""

    def close(self) -> None:
        """The node has closed the connection."""

    lost = close


class Rig:
    """A node that leads alone, which has written before, and a client."""

    def __init__(self) -> None:
        self.group = Group(1)
        self.group.elect()
        self.client: Client = self.group.connect()
        self.client.create_topic("T", queues=4)
        for _ in range(300):
            self.client.send("T", b"x" * 1000)
        self.client.create_topic("S")
        self.client.heartbeat("g")
        for _ in range(100):
            self.client.send("S", b"x", 0, {"b": "xy" * 500})
        self.client.create_topic("W", queues=1000)
        for queue_id in range(1000):
            self.client.start_send("W", b"x", queue_id)
        self.group.settle()

    def cpu_ns(self, frame: bytes) -> int:
        """What the node takes for the frame."""
        return self.cpu_ns_in_turns(frame)[0]

    def cpu_ns_in_turns(self, frame: bytes) -> tuple[int, int]:
        """What the node takes for the frame, and the most that it takes for it in one turn."""
        session = self.group.accept(self.group.leader, DeafEnd(), "10.1.1.1", 999)
        process, longest = self.group.members[self.group.leader].process, 0
        began = turn_began = time.process_time_ns()
        session.received(frame)
        while process.node.long_requests.has_more:
            process.turn(self.group.now_ns, self.group.wall_ms)
            process.end_turn()
            turn_ended = time.process_time_ns()
            longest = max(longest, turn_ended - turn_began)
            turn_began = turn_ended
        self.group.settle()
        took = time.process_time_ns() - began
        self.group.hang_up(self.group.leader, session)
        return took, max(longest, time.process_time_ns() - turn_began)

    def send_ns(self) -> tuple[float, float]:
        """What a plain send takes, which is stored, and that for each of its bytes."""
        fields = {
            name: str(value) for name, value in send_fields(properties="TAGS\x01a\x02", queueId=1).items()
        }
        frame = encode(request(RequestCode.SEND_MESSAGE, fields, b"x" * 500, opaque=1))
        log = self.group.node(self.group.leader).replica.store.log
        before = log.last_index
        took = sorted(self.cpu_ns(frame) for _ in range(15))[7]
        assert log.last_index >= before + 15
        return took, took / len(frame)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    rig = Rig()
    rig.cpu_ns(filtered_pull(RequestCode.PULL_MESSAGE, "a = 1"))  # the first one loads the parser
    gc.disable()  # of all that the tests hold; a broker's begins anew when it has started
    yield rig
    gc.enable()


@pytest.mark.parametrize("code", RequestCode)
def test_no_frame_costs_much_more_than_its_bytes(rig: Rig, code: RequestCode) -> None:
    if code in CHANGES_MEMBERS:
        pytest.skip("would end the group that the others are sent to")
    send_ns, byte_ns = rig.send_ns()
    frames = list(worst_frames(code, 1))
    assert frames
    for frame in frames:
        bound = FACTOR * (send_ns + byte_ns * len(frame))
        took = rig.cpu_ns(frame)
        if took >= bound:  # perhaps the machine's doing: the least of some counts
            took = min(rig.cpu_ns(frame) for _ in range(3))
        assert took < bound, f"{code.name}: {took / 1e6:.1f} ms for {len(frame)} bytes {frame[:200]!r}"


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_condition_costs_each_turn_its_bytes_at_most(rig: Rig, code: RequestCode) -> None:
    send_ns, byte_ns = rig.send_ns()
    conditions = list(worst_conditions(8192))
    assert conditions
    for condition in conditions:
        costs = []
        # Each is new to the node; more than once, as the machine may have had to do with one.
        for number in range(3):
            changed = condition.replace("a", f"a{number}")[:8192] if number else condition
            frame = filtered_pull(code, changed)
            costs.append(rig.cpu_ns_in_turns(frame))
            own = send_ns + byte_ns * len(frame)
            if costs[-1][0] < CONDITION_FACTOR * own and costs[-1][1] < FACTOR * own:
                break
        else:
            pytest.fail(f"{costs} ns for {condition[:40]}, {own:.0f} by its bytes")
