"""What the replicas of a group say to each other on the wire.

A link goes one way: each node dials every other and only sends on that connection, so a link is a queue with one
writer, and a lost one says that messages to that node are lost. A frame is

    uint32 length of what follows | uint16 header length | header: CBOR array | body: raw bytes

and the header's first item is the kind. An append's body is a slice of the sender's commit log, byte for byte; it is
neither copied nor encoded on its way. A body that is too long for a frame, as a snapshot's may be, goes ahead in frames
of kind "piece"; the frame that follows them is told with all of it.

A link begins with `Hello`, `Challenge` and `Proof` (broker/peers/handshake.py); the challenge is all that the accepting
side ever sends. A node that gets another protocol version, group or address than its own closes the link and says why
in its log.

All input is checked here: a frame that is too long, cut, of unknown kind or with a field of the wrong type raises
`PeerProtocolError`, and the link is closed.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import cbor2

from broker.peers.append_headers import AppendHeaders
from broker.peers.header_fields import FieldError, bytes_of, index_of, refuse, text_of
from broker.peers.raft_headers import RAFT_HEADERS, encode_raft_header
from broker.requests.connection import Buffer
from raft.messages import AppendRequest, AppendResponse, Message, SnapshotRequest

PROTOCOL_VERSION: Final = 6
"""6: what is forwarded says of which term's leader it is asked, and comes back if that is over (`NotDone`).

5: long bodies come in pieces.

3: the hello is answered, and both ends prove that they know the group's secret (broker/peers/handshake.py).
"""

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one frame; the longest bodies, those of snapshots, go in pieces."""

PIECE_BYTES: Final = 16 * 1024 * 1024
"""How long the pieces of a body are that is longer than `WHOLE_BODY_BYTES_MAX`."""

WHOLE_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Longer than any request that is forwarded, any answer that is relayed, any append."""

BODY_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
"""Of a body in all its pieces. What `[limits]` allows by default (a million positions of groups with the longest names,
20,000 topics and 8,000 groups with their attributes, a million transactions) is a snapshot of 1 GiB or less.
"""

_FRAME = struct.Struct(">IH")
_PIECE_HEADER: Final = cbor2.dumps(("piece",))


class PeerProtocolError(Exception):
    """A peer sent what this version cannot read: the other side's fault; the link is closed and dialled anew."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who dials: protocol version, group name and node id; `target` is the node that it means to reach.

    `address` is where the source listens for peers: a receiver that does not know it as a member answers there. The
    nonce is the frame's body.
    """

    version: int
    group: str
    source: str
    target: str
    address: str = ""
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer to a hello: the accepting side's nonce, and its proof that it knows the secret."""

    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """The dialling side's proof; what follows it is believed."""

    proof: bytes


class RaftFrame(NamedTuple):
    """A Raft message. `position` and `body` belong to appends: where the entries stand in the log, and their bytes.

    For a snapshot `position` is where the log is to begin, `applied_index` what the metadata in `body` reflects.
    """

    message: Message
    position: int = 0
    applied_index: int = -1
    body: Buffer = b""


@dataclass(frozen=True, slots=True)
class Forward:
    """A request of a client of the sending node, for the leader of `term`. `body` is the remoting frame as received.

    No other leader may act on it, nor this node in a later term: by then the sender has told its client that the
    outcome is unknown, or asked elsewhere, and what the client has done since must not be undone. (What a client
    answers to a node that has asked it comes this way, too, and may come at any time.)
    """

    connection: int
    host: bytes
    term: int
    body: Buffer


@dataclass(frozen=True, slots=True)
class NotDone:
    """Nothing was done, nor will be, of the request with that opaque, which was forwarded to the leader of `term`.

    So whoever has forwarded it may ask the next leader, whatever kind of request it is.
    """

    connection: int
    opaque: int
    term: int


@dataclass(frozen=True, slots=True)
class Relay:
    """Bytes for a client of the receiving node: answers to what it forwarded, or requests to the client."""

    connection: int
    body: Buffer


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client whose requests were forwarded has disconnected."""

    connection: int


@dataclass(frozen=True, slots=True)
class NotAMember:
    """To a node that has dialled: the configuration in force at `index`, as the sender has it, is without it."""

    index: int


Frame = Hello | Challenge | Proof | RaftFrame | Forward | NotDone | Relay | ClientGone | NotAMember


def encode_frame(frame: Frame) -> tuple[Buffer, ...]:
    """The frame as buffers to send in order; the body is handed through untouched.

    They belong together: nothing else may be sent between them. Raises `PeerProtocolError` where a body is longer than
    `BODY_BYTES_MAX`.
    """
    body: Buffer = b""
    match frame:
        case RaftFrame():
            header = encode_raft_header(frame.message, frame.position, frame.applied_index)
            body = frame.body
        case Forward(connection, host, term, body):
            header = cbor2.dumps(("forward", connection, host, term))
        case NotDone(connection, opaque, term):
            header = cbor2.dumps(("not_done", connection, opaque, term))
        case Relay(connection, body):
            header = cbor2.dumps(("relay", connection))
        case ClientGone(connection):
            header = cbor2.dumps(("client_gone", connection))
        case NotAMember(index):
            header = cbor2.dumps(("not_a_member", index))
        case Hello(version, group, source, target, address, body):
            header = cbor2.dumps(("hello", version, group, source, target, address))
        case Challenge(nonce, proof):
            header = cbor2.dumps(("challenge", nonce, proof))
        case Proof(proof):
            header = cbor2.dumps(("proof", proof))
    if len(body) > WHOLE_BODY_BYTES_MAX:
        return _in_pieces(header, body)
    head = _FRAME.pack(2 + len(header) + len(body), len(header)) + header
    return (head, body) if body else (head,)


def _in_pieces(header: bytes, body: Buffer) -> tuple[Buffer, ...]:
    if len(body) > BODY_BYTES_MAX:
        raise PeerProtocolError(f"a body of {len(body)} bytes, at most {BODY_BYTES_MAX} can be sent")
    view = memoryview(body)
    buffers: list[Buffer] = []
    for begin in range(0, len(view), PIECE_BYTES):
        piece = view[begin : begin + PIECE_BYTES]
        buffers += (
            _FRAME.pack(2 + len(_PIECE_HEADER) + len(piece), len(_PIECE_HEADER)) + _PIECE_HEADER,
            piece,
        )
    return (*buffers, _FRAME.pack(2 + len(header), len(header)) + header)


class PeerDecoder:
    """Cuts the bytes of a link into frames; a body is a slice of what was received, valid for as long as it is held."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = _FRAME.size
        self._body: list[bytes] = []
        """The pieces that have come of a body, and their length."""
        self._body_length = 0
        self._usual = AppendHeaders()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes; raises `PeerProtocolError` on anything that is not a frame."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []
        if len(self._pieces) > 1:
            data = b"".join(self._pieces)
        view = memoryview(data)
        frames: list[Frame] = []
        begin, end = 0, len(data)
        self._needed = _FRAME.size
        while end - begin >= _FRAME.size:
            length, header_length = _FRAME.unpack_from(data, begin)
            if length > FRAME_BYTES_MAX or header_length + 2 > length:
                raise PeerProtocolError(f"frame of {length} bytes with a header of {header_length}")
            frame_end = begin + 4 + length
            if frame_end > end:
                self._needed = frame_end - begin
                break
            header_end = begin + _FRAME.size + header_length
            header, body = data[begin + _FRAME.size : header_end], view[header_end:frame_end]
            begin = frame_end
            if not self._body:
                frame = self._usual_frame(header, body)
                if frame is not None:
                    frames.append(frame)
                    continue
            if header == _PIECE_HEADER:
                self._keep(body)
                continue
            frames.append(self._decode(header, self._whole(body) if self._body else body))
        self._pieces = [data[begin:]] if begin < end else []
        self._held = end - begin
        return frames

    def _usual_frame(self, header: bytes, body: memoryview) -> RaftFrame | None:
        if body:
            append = self._usual.append(header)
            return None if append is None else RaftFrame(append[0], append[1], body=body)
        acknowledgement = self._usual.acknowledgement(header)
        if acknowledgement is not None:
            return RaftFrame(acknowledgement)
        heartbeat = self._usual.heartbeat(header)
        return None if heartbeat is None else RaftFrame(heartbeat[0], heartbeat[1])

    def _decode(self, header: bytes, body: memoryview) -> Frame:
        frame = _decode(header, body)
        if isinstance(frame, RaftFrame) and isinstance(frame.message, AppendRequest | AppendResponse):
            self._usual.learn(frame.message.source, frame.message.target)
        return frame

    def _keep(self, piece: memoryview) -> None:
        self._body_length += len(piece)
        if not piece or self._body_length > BODY_BYTES_MAX:
            raise PeerProtocolError(
                f"a body of {self._body_length} bytes in pieces, the last of {len(piece)}"
            )
        self._body.append(bytes(piece))  # not the slice, which would keep all that came with it

    def _whole(self, rest: memoryview) -> memoryview:
        body = memoryview(b"".join((*self._body, rest)))
        self._body, self._body_length = [], 0
        return body


def take_frame(data: bytes, frame_bytes_max: int) -> tuple[Frame, bytes] | None:
    """The frame that ``data`` begins with, and what follows it; None while it is not whole.

    For the frames of a handshake, which are short, and behind which others may come that are not. Raises
    `PeerProtocolError` on anything else.
    """
    if len(data) < _FRAME.size:
        return None
    length, header_length = _FRAME.unpack_from(data)
    if length > frame_bytes_max or header_length + 2 > length:
        raise PeerProtocolError(f"frame of {length} bytes with a header of {header_length}")
    if len(data) < 4 + length:
        return None
    header_end = _FRAME.size + header_length
    return _decode(data[_FRAME.size : header_end], memoryview(data)[header_end : 4 + length]), data[
        4 + length :
    ]


def _decode(header: bytes, body: memoryview) -> Frame:
    try:
        kind, *fields = cbor2.loads(header)
        decode_raft = RAFT_HEADERS.get(kind)
        if decode_raft is not None:
            return _raft_frame(*decode_raft(fields), body)
        decode = _DECODERS.get(kind)
        if decode is None:
            raise PeerProtocolError(f"frame of unknown kind {kind!r}")
        return decode(fields, body)
    except PeerProtocolError:
        raise
    except FieldError as error:
        raise PeerProtocolError(str(error)) from error
    except (cbor2.CBORError, ValueError, TypeError, IndexError) as error:
        raise PeerProtocolError(f"frame header that cannot be read: {error}") from error


def _raft_frame(message: Message, position: int, applied_index: int, body: memoryview) -> RaftFrame:
    if isinstance(message, AppendRequest):
        if bool(message.spans) != bool(body):
            raise PeerProtocolError("an append's entries and its bytes do not go together")
        return RaftFrame(message, position, body=body)
    return RaftFrame(message, position, applied_index, body if isinstance(message, SnapshotRequest) else b"")


def _decode_forward(fields: list[Any], body: memoryview) -> Forward:
    connection, host, term = fields
    if type(host) is not bytes or len(host) not in {8, 20}:
        refuse("host", host)
    return Forward(index_of("connection", connection, 0), host, index_of("term", term, 0), body)


def _decode_not_done(fields: list[Any], body: memoryview) -> NotDone:
    connection, opaque, term = fields
    if type(opaque) is not int or not -(1 << 31) <= opaque < 1 << 31:
        refuse("opaque", opaque)
    return NotDone(index_of("connection", connection, 0), opaque, index_of("term", term, 0))


def _decode_relay(fields: list[Any], body: memoryview) -> Relay:
    (connection,) = fields
    return Relay(index_of("connection", connection, 0), body)


def _decode_client_gone(fields: list[Any], body: memoryview) -> ClientGone:
    (connection,) = fields
    return ClientGone(index_of("connection", connection, 0))


def _decode_hello(fields: list[Any], body: memoryview) -> Hello:
    version = index_of("version", fields[0])
    if version != PROTOCOL_VERSION:
        raise PeerProtocolError(
            f"it speaks version {version} of the protocol of peers, this node version {PROTOCOL_VERSION}: "
            "run the same release of Trivet on all nodes of the group"
        )
    _, group, source, target, address = fields
    return Hello(
        version,
        text_of("group", group),
        text_of("source", source),
        text_of("target", target),
        text_of("address", address),
        bytes(body),
    )


def _decode_challenge(fields: list[Any], body: memoryview) -> Challenge:
    nonce, proof = fields
    return Challenge(bytes_of("nonce", nonce), bytes_of("proof", proof))


def _decode_proof(fields: list[Any], body: memoryview) -> Proof:
    (proof,) = fields
    return Proof(bytes_of("proof", proof))


def _decode_not_a_member(fields: list[Any], body: memoryview) -> NotAMember:
    (index,) = fields
    return NotAMember(index_of("index", index))


_DECODERS: Final[dict[object, Callable[[list[Any], memoryview], Frame]]] = {
    "forward": _decode_forward,
    "not_done": _decode_not_done,
    "relay": _decode_relay,
    "client_gone": _decode_client_gone,
    "not_a_member": _decode_not_a_member,
    "hello": _decode_hello,
    "challenge": _decode_challenge,
    "proof": _decode_proof,
}
