"""Requests, responses and what nodes say to each other about them, as one line of text each."""

from __future__ import annotations

from typing import NamedTuple

from broker.access.frame_signature import FRAME_SIGNATURE
from broker.peers.protocol import (
    ClientGone,
    EntriesLent,
    EntriesWanted,
    Forward,
    Frame,
    NotAMember,
    NotDone,
    RaftFrame,
    Relay,
)
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import FrameDecoder
from broker.remoting.headers import (
    OffsetResponseHeader,
    PortionResponseHeader,
    PullMessageResponseHeader,
    SendMessageResponseHeader,
)
from broker.remoting.json_body import decode_body, decode_request
from broker.remoting.route import MASTER_ID, ClusterInfo
from broker.replica.internal_records import read_internal
from log.formats.layout import HEADER_BYTES
from log.formats.record import decode_record
from raft.messages import AppendRequest, AppendResponse
from tests.broker.harness import split_records

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
"""What a producer says of a transaction: RocketMQ's commitOrRollback."""


def request_line(command: RemotingCommand) -> str:
    """Describes a request in a few words."""
    fields = command.fields
    match command.code:
        case RequestCode.SEND_MESSAGE:
            word = "half message" if int(fields["sysFlag"]) & 4 else "send"
            again = ", again" if fields.get("again") == "true" else ""
            return f"{word} {bytes(command.body).decode()}{again}"
        case RequestCode.END_TRANSACTION:
            outcome = {COMMIT: "commit", ROLLBACK: "rollback", UNKNOWN: "unknown"}
            return (
                f"{outcome[int(fields['commitOrRollback'])]} of half message {fields['tranStateTableOffset']}"
            )
        case RequestCode.PULL_MESSAGE:
            flags = int(fields["sysFlag"])
            hold = f", hold {round(int(fields['suspendTimeoutMillis']) / 1000, 1):g} s" if flags & 2 else ""
            commit = f", commit {fields['commitOffset']}" if flags & 1 else ""
            return f"pull {fields['queueOffset']}{hold}{commit}"
        case RequestCode.UPDATE_CONSUMER_OFFSET:
            return f"report {fields['commitOffset']}"
        case RequestCode.QUERY_CONSUMER_OFFSET:
            return "ask for the consumer offset"
        case RequestCode.GET_MAX_OFFSET:
            return "ask for the end"
        case RequestCode.GET_MIN_OFFSET:
            return "ask for the first offset"
        case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            return f"reset to {fields['offset']}"
        case RequestCode.LOCK_BATCH_MQ:
            return f"lock for {decode_request(command.body, LockBatchBody).client_id}"
        case RequestCode.UNLOCK_BATCH_MQ:
            return f"unlock for {decode_request(command.body, LockBatchBody).client_id}"
        case RequestCode.TRIVET_CHANGE_GROUP:
            return f"{fields['operation']} {fields['node']}"
        case RequestCode.TRIVET_BEGIN_PORTION:
            return f"begin portion {fields['number']}"
        case RequestCode.TRIVET_END_PORTION:
            return f"end portion {fields['number']}"
        case RequestCode.CHECK_TRANSACTION_STATE:
            (record,) = split_records(command.body)
            return f"what became of half message {fields['tranStateTableOffset']}, {record.body.decode()}?"
        case _:
            return RequestCode(command.code).name


def response_line(code: int, response: RemotingCommand) -> str:
    """Describes the response to a request of this code."""
    name = ResponseCode(response.code).name
    remark = f": {response.remark}" if response.remark else ""
    fields = response.fields
    match code:
        case RequestCode.SEND_MESSAGE if response.code == ResponseCode.SUCCESS:
            header = response.decode_fields(SendMessageResponseHeader)
            found = ", found there" if fields.get("once") == "found" else ""
            return f"stored in queue {header.queue_id} at {header.queue_offset}{found}"
        case RequestCode.PULL_MESSAGE if "nextBeginOffset" in fields:
            found = " ".join(record.body.decode() for record in split_records(response.body))
            said = found if response.code == ResponseCode.SUCCESS else name + remark
            return f"{said}, go on at {response.decode_fields(PullMessageResponseHeader).next_begin_offset}"
        case RequestCode.QUERY_CONSUMER_OFFSET | RequestCode.GET_MAX_OFFSET | RequestCode.GET_MIN_OFFSET if (
            "offset" in fields
        ):
            return str(response.decode_fields(OffsetResponseHeader).offset)
        case RequestCode.LOCK_BATCH_MQ if response.code == ResponseCode.SUCCESS:
            return "granted" if decode_body(response.body, LockBatchResponseBody).queues else "not granted"
        case RequestCode.TRIVET_BEGIN_PORTION if response.code == ResponseCode.SUCCESS:
            return response.decode_fields(PortionResponseHeader).standing
        case _:
            return name + remark


def registration_line(command: RemotingCommand) -> str:
    """Describes what a node asks of a name server."""
    fields = command.fields
    signed = ", signed" if FRAME_SIGNATURE in fields else ""
    match command.code:
        case RequestCode.REGISTER_BROKER:
            number = int(fields["brokerId"])
            return f"registers as {'the master' if number == MASTER_ID else f'number {number}'}{signed}"
        case RequestCode.UNREGISTER_BROKER:
            return f"unregisters{signed}"
        case RequestCode.GET_BROKER_CLUSTER_INFO:
            return f"asks who the master is{signed}"
        case RequestCode.TRIVET_GREETING:
            return "asks for a greeting"
        case RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return "asks for a route, which any name server answers"
        case _:
            return RequestCode(command.code).name


def registered_line(code: int, response: RemotingCommand) -> str | None:
    """Describes a name server's response to a request of this code; None if it says nothing."""
    name = ResponseCode(response.code).name
    match code:
        case RequestCode.GET_BROKER_CLUSTER_INFO if response.code == ResponseCode.SUCCESS:
            (broker,) = ClusterInfo.decode(response.body).broker_table.values()
            return f"the master is {broker.broker_addresses.get(MASTER_ID, 'none')}"
        case RequestCode.TRIVET_GREETING if response.code == ResponseCode.SUCCESS:
            return "a nonce"
        case RequestCode.REGISTER_BROKER if response.code != ResponseCode.SUCCESS:
            return f"{name}: {response.remark}"
        case _:
            return None


def entries_line(body: bytes) -> str:
    """The entries of an append: messages by topic and body, the group's own by their kind."""
    words = []
    begin = HEADER_BYTES
    while begin < len(body):
        size = int.from_bytes(body[begin : begin + 4], "big")
        own = read_internal(memoryview(body)[begin : begin + size])
        record = decode_record(body, begin)
        words.append(f"{record.topic} {record.body.decode()}" if own is None else own[0].decode())
        begin += size + HEADER_BYTES
    return ", ".join(words)


class Request(NamedTuple):
    """A request that a scenario has made: its code, the client's name, and a description."""

    code: int
    client: str
    what: str


Asked = dict[int, Request]
"""By opaque, which no two requests of a scenario share."""


def frame_line(frame: Frame, asked: Asked, shows_appends: bool) -> str | None:
    """Describes a frame between nodes; None if it is not to be shown."""
    match frame:
        case Forward():
            (command,) = FrameDecoder().feed(bytes(frame.body))
            what = f"an answer to {command.opaque}" if command.is_response else request_line(command)
            return f"forward to the leader of term {frame.term}: {what}"
        case Relay():
            (command,) = FrameDecoder().feed(bytes(frame.body))
            if not command.is_response:
                return f"relay: {request_line(command)}"
            made = asked[command.opaque]
            return f"relay: {made.client}'s {made.what}: {response_line(made.code, command)}"
        case NotDone():
            made = asked[frame.opaque]
            return f"not done, nor will be in term {frame.term}: {made.client}'s {made.what}"
        case ClientGone():
            return "a client is gone"
        case NotAMember():
            return "you are no member"
        case EntriesWanted():
            return f"wants entries {frame.first_index}..{frame.last_index}"
        case EntriesLent():
            what = f"lends entries from {frame.first_index}"
            return what if frame.body else f"holds no whole entry {frame.first_index} either"
        case RaftFrame(message=AppendRequest()) if shows_appends and frame.body:
            return f"append: {entries_line(bytes(frame.body))}"
        case RaftFrame(message=AppendResponse(success=True)) if shows_appends:
            return "acknowledges"
    return None


def kinds_of(frame: Frame) -> set[str]:
    """The words that mean a frame in `hold` and `lose`."""
    match frame:
        case Forward():
            return {"forward", "any"}
        case Relay():
            return {"relay", "any"}
        case NotDone():
            return {"not-done", "any"}
        case ClientGone():
            return {"gone", "any"}
        case EntriesWanted():
            return {"wanted", "any"}
        case EntriesLent():
            return {"lent", "any"}
        case RaftFrame(message=AppendRequest()) if frame.body:
            return {"append", "raft", "any"}
        case RaftFrame(message=AppendResponse()):
            return {"acknowledgement", "raft", "any"}
        case RaftFrame():
            return {"raft", "any"}
        case _:
            return {"any"}
