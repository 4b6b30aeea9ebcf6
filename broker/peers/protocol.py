"""The protocol that the replicas of a group speak to each other.

A link goes one way: each node dials every other and only sends on that connection, so a link is a queue with one
writer, and a lost one says that messages to that node are lost. A frame is

    uint32 length of what follows | uint16 header length | header | body: raw bytes

An append's body is a slice of the sender's commit log, byte for byte; it is neither copied nor encoded on its way. A
body that is too long for a frame, as a snapshot's may be, goes ahead in frames of a kind of their own, the pieces; the
frame that follows them is told with all of it.

A link begins with `Hello`, `Challenge` and `Proof` (broker/peers/handshake.py); the challenge is all that the accepting
side ever sends. The headers of these three are arrays of CBOR, and stay so: every release reads those of every other,
and later ones may only add fields at their ends. They agree on the version of everything behind them, whose headers are
those of broker/peers/headers.py:

- a hello names the oldest and the newest version that its node speaks;
- the accepting side takes the newest that both speak, and names it in its challenge;
- if there is none it closes the link, and writes both ranges to its log. As each of two nodes dials the other, each
  of them says so.

The versions that this release speaks, and what is new in each, are in broker/state/release.py.

All input is checked here: a frame that is too long, cut, of unknown kind or with a field of the wrong type raises
`PeerProtocolError`, and the link is closed.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import cbor2
import msgspec
from msgspec import Meta, Struct

from broker.peers.headers import (
    PIECE_HEADER,
    ClientGoneHeader,
    EntriesLentHeader,
    EntriesWantedHeader,
    ForwardHeader,
    Header,
    NotAMemberHeader,
    NotDoneHeader,
    RaftHeader,
    RelayHeader,
    decode_header,
    encode_header,
    encode_raft_header,
)
from broker.remoting.pieces import Pieces
from broker.requests.connection import Buffer
from broker.state.release import FIRST_FORMAT, Release
from broker.state.snapshot_reading import cbor_head
from broker.state.writing import CBOR_ARRAY, CBOR_BYTES, CBOR_MAP, CBOR_TAG, CBOR_TEXT
from raft.messages import AppendRequest, Message, RecoveryResponse, SnapshotRequest, VoteResponse

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest frame; the longest bodies, those of snapshots, go in pieces."""

PIECE_BYTES: Final = 16 * 1024 * 1024
"""The longest piece of a body that is longer than `WHOLE_BODY_BYTES_MAX`."""

WHOLE_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""The longest body that goes in one frame: longer than any forwarded request, relayed response or append."""

BODY_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
"""The longest body in all its pieces. What `[limits]` allows by default is a snapshot of 1 GiB or less: a million
offsets of consumer groups with the longest names, 20,000 topics and 8,000 consumer groups with their attributes, a
million transactions.
"""

_FRAME = struct.Struct(">IH")
_TIME_MS_MAX: Final = 1 << 48
"""No clock shows a later time than the year 10,000."""
_LENGTH_BYTES: Final = 4
"""The length, which does not count itself."""
_HEADER_LENGTH_BYTES: Final = 2
_HOST_BYTES: Final = (8, 20)
"""An address of IPv4 or IPv6, and a port."""


class PeerProtocolError(Exception):
    """A peer sent what this version cannot read: the other side's fault; the link is closed and dialled anew."""


class BrokenPeerError(PeerProtocolError):
    """A peer sent what can be read, and what no node of the group says that works."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The dialling side's first frame: the versions that it speaks, its group and its node id, and its release.

    `target` is the node that it means to reach. The source listens for peers at `address`: a receiver that does not
    know it as a member answers there. The nonce is the frame's body. `time_ms` is what time it is (ms since 1970): with
    `is_group_time` by the group's time, else by the node's wall clock (broker/replica/group_clock.py). It is None in a
    hello of a release that does not say it.
    """

    version: int
    group: str
    source: str
    target: str
    address: str = ""
    nonce: bytes = b""
    oldest_version: int = 0
    newest_format: int = FIRST_FORMAT
    """The newest format of a group that its release reads (broker/state/release.py)."""
    release: str = ""
    """The name of its release, "" where it does not say."""
    time_ms: int | None = None
    is_group_time: bool = False


@dataclass(frozen=True, slots=True)
class Challenge:
    """The accepting side's answer to a hello: its nonce, its proof that it knows the secret, the link's version."""

    nonce: bytes
    proof: bytes
    version: int
    newest_format: int = FIRST_FORMAT
    """The newest format of a group that its release reads."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The dialling side's proof; what follows it is believed."""

    proof: bytes


class RaftFrame(NamedTuple):
    """A Raft message. `position` and `body` belong to appends: where the entries stand in the log, and their bytes.

    For a snapshot `position` is where the log is to begin, `applied_index` what the metadata in `body` reflects. In an
    answer to an append a `position` other than 0 says that its node takes no messages for want of room
    (broker/replica/disk_space.py); those of release 0.1.0 have 0.
    `time_ms` is the group's time (ms since 1970) at which an append, or a heartbeat, was sent, or a vote given or
    refused (broker/replica/group_clock.py); -1 in all other messages, in those of release 0.1.0, and of a voter that
    does not know the group's time.
    """

    message: Message
    position: int = 0
    applied_index: int = -1
    body: Buffer = b""
    time_ms: int = -1


@dataclass(frozen=True, slots=True)
class Forward:
    """A request of a client of the sending node, for the leader of `term`. `body` is the remoting frame as received.

    No other leader may act on it, nor this node in a later term: by then the sender has told its client that the
    outcome is unknown, or has asked elsewhere, and what the client has done since must not be undone. (A client's
    response to a node that has asked it something comes this way, too, and may come at any time.)
    """

    connection: int
    host: bytes
    term: int
    body: Buffer


@dataclass(frozen=True, slots=True)
class NotDone:
    """Gives back the request with that opaque, which was forwarded to the leader of `term`: it never takes effect.

    So the node that has forwarded it may ask the next leader, whatever kind of request it is.
    """

    connection: int
    opaque: int
    term: int


@dataclass(frozen=True, slots=True)
class Relay:
    """Bytes for a client of the receiving node: responses to what it forwarded, or requests to the client."""

    connection: int
    body: Buffer


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client whose requests were forwarded has disconnected."""

    connection: int


@dataclass(frozen=True, slots=True)
class NotAMember:
    """Tells a node that has dialled that it is not in the configuration in force at `index`, as the sender has it."""

    index: int


@dataclass(frozen=True, slots=True)
class EntriesWanted:
    """Asks for committed entries from `first_index` on, which are damaged at the sender; `last_index` is the last one.

    Only to be sent on a link of `ENTRIES_LENT_SINCE` or later.
    """

    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class EntriesLent:
    """Answers `EntriesWanted`: committed entries that were checked here, from `first_index`, at `position`, on.

    Without a body the sender does not hold them whole.
    """

    first_index: int
    position: int
    body: Buffer


ENTRIES_LENT_SINCE: Final = 9
"""The first version of the protocol with `EntriesWanted` and `EntriesLent`."""
LOST_VOTERS_SINCE: Final = 10
"""The first version in which a vote names voters of lost configurations."""
LOST_VOTES_SINCE: Final = 11
"""The first version in which a node that has lost its votes says so, and is told the voters of the group."""

HandshakeFrame = Hello | Challenge | Proof
Frame = RaftFrame | Forward | NotDone | Relay | ClientGone | NotAMember | EntriesWanted | EntriesLent
"""A frame of a link whose handshake is over."""


def common_version(release: Release, oldest: int, newest: int) -> int:
    """Returns the newest version that both `release` and one with the versions `oldest` to `newest` speak.

    Raises `PeerProtocolError`, which names both ranges, if there is none.
    """
    version = min(newest, release.newest_protocol)
    if version < max(oldest, release.oldest_protocol):
        raise PeerProtocolError(
            f"it speaks {_versions(oldest, newest)} of the protocol of peers, "
            f"this node {_versions(release.oldest_protocol, release.newest_protocol)}: "
            "run the same release of Trivet on all nodes of the group, or releases that follow each other"
        )
    return version


def _versions(oldest: int, newest: int) -> str:
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def encode_frame(frame: Frame | HandshakeFrame) -> tuple[Buffer, ...]:
    """Returns the frame as buffers to send in order; the body is handed through untouched.

    They belong together: nothing else may be sent between them. Raises `PeerProtocolError` where a body is longer than
    `BODY_BYTES_MAX`.
    """
    body: Buffer = b""
    match frame:
        case RaftFrame(message, position, applied_index, body, time_ms):
            # No message has both: one number of the header stands for whichever it is (`RaftHeader`).
            header = encode_raft_header(message, position, applied_index if time_ms < 0 else time_ms)
        case Forward(connection, host, term, body):
            header = encode_header(ForwardHeader(connection, host, term))
        case NotDone(connection, opaque, term):
            header = encode_header(NotDoneHeader(connection, opaque, term))
        case Relay(connection, body):
            header = encode_header(RelayHeader(connection))
        case ClientGone(connection):
            header = encode_header(ClientGoneHeader(connection))
        case NotAMember(index):
            header = encode_header(NotAMemberHeader(index))
        case EntriesWanted(first_index, last_index):
            header = encode_header(EntriesWantedHeader(first_index, last_index))
        case EntriesLent(first_index, position, body):
            header = encode_header(EntriesLentHeader(first_index, position))
        case Hello(version, group, source, target, address, body, oldest):
            fields = (
                "hello",
                version,
                group,
                source,
                target,
                address,
                oldest,
                frame.newest_format,
                frame.release,
            )
            # Behind all that every release has: an older one does not look so far.
            clock = () if frame.time_ms is None else (frame.time_ms, frame.is_group_time)
            header = cbor2.dumps((*fields, *clock))
        case Challenge(nonce, proof, version, newest_format):
            header = cbor2.dumps(("challenge", nonce, proof, version, newest_format))
        case Proof(proof):
            header = cbor2.dumps(("proof", proof))
    if len(body) > WHOLE_BODY_BYTES_MAX:
        return _in_pieces(header, [body])
    head = _FRAME.pack(_HEADER_LENGTH_BYTES + len(header) + len(body), len(header)) + header
    return (head, body) if body else (head,)


def encode_snapshot(frame: RaftFrame, state: Pieces) -> tuple[Buffer, ...]:
    """Returns the frame of a snapshot, with the state as its body. Raises as `encode_frame`."""
    header = encode_raft_header(frame.message, frame.position, frame.applied_index)
    buffers = state.all()
    length = sum(map(len, buffers))
    if length > WHOLE_BODY_BYTES_MAX:
        return _in_pieces(header, buffers)
    return (_FRAME.pack(_HEADER_LENGTH_BYTES + len(header) + length, len(header)) + header, *buffers)


def _in_pieces(header: bytes, body: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Returns the pieces of a long body, and the frame behind them. Raises as `encode_frame`."""
    length = sum(map(len, body))
    if length > BODY_BYTES_MAX:
        raise PeerProtocolError(f"a body of {length} bytes, at most {BODY_BYTES_MAX} can be sent")
    buffers: list[Buffer] = []
    for whole in body:
        view = memoryview(whole)
        for begin in range(0, len(view), PIECE_BYTES):
            piece = view[begin : begin + PIECE_BYTES]
            length = _HEADER_LENGTH_BYTES + len(PIECE_HEADER) + len(piece)
            buffers += (_FRAME.pack(length, len(PIECE_HEADER)) + PIECE_HEADER, piece)
    # The frame itself, with what the pieces bring as its body.
    return (*buffers, _FRAME.pack(_HEADER_LENGTH_BYTES + len(header), len(header)) + header)


class PeerDecoder:
    """Cuts the bytes of a link into frames; a body is a slice of what was received, valid for as long as it is held."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """The bytes that were fed and are no whole frame yet."""
        self.held = 0
        """The bytes of that."""
        self.needed = _FRAME.size
        """The bytes that a whole frame takes, as far as that is known; none is cut before so many are held."""
        self._body = bytearray()
        """What has come of a long body; empty between long bodies. Not as pieces: short ones would take many times the
        memory of what is in them."""

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes. Raises `PeerProtocolError` on anything that is not a frame."""
        # A long frame comes in hundreds of reads: it is put together once, when all of it is here.
        self.held += len(data)
        if self._pieces or self.held < self.needed:
            self._pieces.append(data)
            if self.held < self.needed:
                return []
            data = b"".join(self._pieces)
        view = memoryview(data)
        frames: list[Frame] = []
        begin, end = 0, len(data)
        self.needed = _FRAME.size
        while end - begin >= _FRAME.size:
            length, header_length = _FRAME.unpack_from(data, begin)
            if length > FRAME_BYTES_MAX or header_length + _HEADER_LENGTH_BYTES > length:
                raise PeerProtocolError(f"frame of {length} bytes with a header of {header_length}")
            frame_end = begin + _LENGTH_BYTES + length
            if frame_end > end:
                self.needed = frame_end - begin
                break
            header_end = begin + _FRAME.size + header_length
            header, body = data[begin + _FRAME.size : header_end], view[header_end:frame_end]
            begin = frame_end
            if header == PIECE_HEADER:
                self._keep(body)
            else:
                # Nothing is sent between pieces and the frame that they belong to.
                frames.append(_frame(header, self._whole(body) if self._body else body))
        self._pieces = [data[begin:]] if begin < end else []
        self.held = end - begin
        assert self.held < self.needed, f"{self.held} bytes are kept of a frame of {self.needed}"
        return frames

    def _keep(self, piece: memoryview) -> None:
        """Keeps a piece of a long body. Raises `PeerProtocolError` for an empty one, or beyond `BODY_BYTES_MAX`."""
        length = len(self._body) + len(piece)
        if not piece or length > BODY_BYTES_MAX:
            raise PeerProtocolError(f"a body of {length} bytes in pieces, the last of {len(piece)}")
        self._body += piece

    def _whole(self, rest: memoryview) -> memoryview:
        body, self._body = self._body, bytearray()
        body += rest
        return memoryview(body).toreadonly()


def _frame(header_bytes: bytes, body: memoryview) -> Frame:
    """Returns the frame of a header and a body. Raises `PeerProtocolError` where they do not go together."""
    try:
        header = decode_header(header_bytes)
    except ValueError as error:
        raise PeerProtocolError(
            f"a frame's header cannot be read: {error} ({len(header_bytes)} bytes: {header_bytes[:64].hex()})"
        ) from error
    # Each field is of its type and in its range. What is left are rules between fields, or with the body.
    if isinstance(header, RaftHeader):
        message = header.message
        if isinstance(message, AppendRequest):
            if bool(message.spans) != bool(body):
                raise PeerProtocolError("an append's entries and its bytes do not go together")
            return RaftFrame(message, header.position, body=body, time_ms=_checked_time(header))
        if body and not isinstance(message, SnapshotRequest):
            raise _unwanted_body(header, body)
        # Whoever has no history says term 0, and all others a greater one (`Raft._answer_recovery`).
        if isinstance(message, RecoveryResponse) and message.has_history != (message.term > 0):
            raise PeerProtocolError(f"has_history is {message.has_history} in term {message.term}")
        # A voter's number is a time, and bounded as one (broker/state/release.py, 9).
        if isinstance(message, VoteResponse):
            return RaftFrame(message, time_ms=_checked_time(header))
        return RaftFrame(message, header.position, header.applied_index_or_time, body)
    match header:
        case ForwardHeader(connection, host, term):
            if len(host) not in _HOST_BYTES:
                raise PeerProtocolError(f"a client's host of {len(host)} bytes")
            return Forward(connection, host, term, body)
        case RelayHeader(connection):
            return Relay(connection, body)
        case EntriesLentHeader(first_index, position):
            return EntriesLent(first_index, position, body)
    if body:
        raise _unwanted_body(header, body)
    match header:
        case NotDoneHeader(connection, opaque, term):
            return NotDone(connection, opaque, term)
        case ClientGoneHeader(connection):
            return ClientGone(connection)
        case NotAMemberHeader(index):
            return NotAMember(index)
        case EntriesWantedHeader(first_index, last_index):
            return EntriesWanted(first_index, last_index)
    raise AssertionError(f"{header} is of no frame")


def _checked_time(header: RaftHeader) -> int:
    """Returns the time in a header, in ms since 1970, -1 for none. Raises `PeerProtocolError` for an impossible one."""
    if header.applied_index_or_time > _TIME_MS_MAX:
        raise PeerProtocolError(f"a message at the time {header.applied_index_or_time}")
    return header.applied_index_or_time


def _unwanted_body(header: Header, body: memoryview) -> PeerProtocolError:
    return PeerProtocolError(f"{type(header).__name__} with a body of {len(body)} bytes")


# ---------------------------------------------------------------------------------------------- the handshake


_NUMBER_MAX: Final = (1 << 31) - 1
"""The greatest version or format. CBOR bounds no number, and Python writes down none of more than 4,300 digits."""


class _Hello(Struct, array_like=True, tag="hello"):
    """The fields behind the nonce, which is the body. Each has a default: older releases sent fewer."""

    version: Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
    group: str = ""
    source: str = ""
    target: str = ""
    address: str = ""
    oldest_version: Annotated[int, Meta(ge=0, le=_NUMBER_MAX)] | None = None
    """None in a hello of a release that speaks one version only."""
    newest_format: Annotated[int, Meta(ge=FIRST_FORMAT, le=_NUMBER_MAX)] = FIRST_FORMAT
    release: str = ""
    time_ms: Annotated[int, Meta(ge=0, le=_TIME_MS_MAX)] | None = None
    is_group_time: bool = False


class _Challenge(Struct, array_like=True, tag="challenge"):
    nonce: bytes
    proof: bytes
    version: Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
    newest_format: Annotated[int, Meta(ge=FIRST_FORMAT, le=_NUMBER_MAX)] = FIRST_FORMAT


class _Proof(Struct, array_like=True, tag="proof"):
    proof: bytes


def take_frame(data: bytes, frame_bytes_max: int) -> tuple[HandshakeFrame, bytes] | None:
    """Returns the frame of a handshake with which `data` begins, and what follows it; None while it is not whole.

    Raises `PeerProtocolError` on anything else.
    """
    if len(data) < _FRAME.size:
        return None
    length, header_length = _FRAME.unpack_from(data)
    if length > frame_bytes_max or header_length + _HEADER_LENGTH_BYTES > length:
        raise PeerProtocolError(f"frame of {length} bytes with a header of {header_length}")
    frame_end = _LENGTH_BYTES + length
    if len(data) < frame_end:
        return None
    header_end = _FRAME.size + header_length
    header, body, rest = data[_FRAME.size : header_end], data[header_end:frame_end], data[frame_end:]
    fields: _Hello | _Challenge | _Proof
    try:
        _check_is_plain(header)
        fields = msgspec.convert(cbor2.loads(header), _Hello | _Challenge | _Proof)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise PeerProtocolError(f"a handshake's header cannot be read: {error}") from error
    match fields:
        case _Hello():
            # The first releases said one version only: they speak that one and no other.
            if fields.oldest_version is None:
                fields.oldest_version = fields.version
            return Hello(**msgspec.structs.asdict(fields), nonce=body), rest
        case _Challenge(nonce, proof, version, newest_format):
            return Challenge(nonce, proof, version, newest_format), rest
    return Proof(fields.proof), rest


def _check_is_plain(header: bytes) -> None:
    """Raises ValueError unless a header is one array of numbers, texts and simple values, as all releases send it."""
    # Before cbor2 sees it, which makes what a tag of CBOR stands for: strangers speak here, and a regular expression of
    # 4 KiB takes Python four seconds, in which the node does nothing else.
    kind, count, at = cbor_head(header, 0)
    if kind != CBOR_ARRAY:
        raise ValueError("no array of CBOR")
    for _ in range(count):
        kind, number, at = cbor_head(header, at)
        if kind in {CBOR_ARRAY, CBOR_MAP, CBOR_TAG}:
            raise ValueError(f"a value of the major type {kind} of CBOR")
        if kind in {CBOR_BYTES, CBOR_TEXT}:
            at += number
