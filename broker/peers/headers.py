"""The headers of the peer protocol behind its handshake: arrays of MessagePack, which msgspec reads and checks.

A header is ``[kind, field, ...]``. Of a Raft message the first field is the array of the message's own fields, in their
order (raft/messages.py). The kinds, the order of fields and their ranges belong to the version of the protocol
(broker/peers/protocol.py): whoever changes one of them raises the version.

All checks of single fields happen while msgspec reads, in C: the type and range of every field stands in its
annotation. A header with more or fewer fields than its kind has is refused.
"""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, cast, get_type_hints

import msgspec
from msgspec import Meta, Struct

from raft.configuration import Configuration
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_LAST: Final = (1 << 62) - 1
"""The greatest index, term, position or number that a header may hold."""

Index = Annotated[int, Meta(ge=-1, le=_LAST)]
Number = Annotated[int, Meta(ge=0, le=_LAST)]
Positive = Annotated[int, Meta(ge=1, le=_LAST)]


class Header(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The options that all headers share."""


class RaftHeader(Header):
    """A Raft message, and the two numbers beside it (`broker.peers.protocol.RaftFrame`)."""

    message: Message
    position: Number
    applied_index_or_time: Index
    """A snapshot's applied index, or the time of an append or of the answer to a candidate: releases that send no time
    send -1, and look at no other message's than a snapshot's."""


class ForwardHeader(Header, tag=10):
    """The header of a `Forward`."""

    connection: Number
    host: Annotated[bytes, Meta(min_length=8, max_length=20)]
    term: Number


class NotDoneHeader(Header, tag=11):
    """The header of a `NotDone`."""

    connection: Number
    opaque: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
    term: Number


class RelayHeader(Header, tag=12):
    """The header of a `Relay`."""

    connection: Number


class ClientGoneHeader(Header, tag=13):
    """The header of a `ClientGone`."""

    connection: Number


class NotAMemberHeader(Header, tag=14):
    """The header of a `NotAMember`."""

    index: Index


class EntriesWantedHeader(Header, tag=16):
    """The header of an `EntriesWanted`."""

    first_index: Number
    last_index: Number


class EntriesLentHeader(Header, tag=17):
    """The header of an `EntriesLent`."""

    first_index: Number
    position: Number


_MESSAGES: Final[dict[type[Message], tuple[int, dict[str, Any]]]] = {
    AppendRequest: (
        1,
        {
            "spans": tuple[tuple[Positive, Positive], ...],
            "configurations": tuple[tuple[Index, Configuration], ...],
        },
    ),
    AppendResponse: (2, {}),
    VoteRequest: (3, {}),
    VoteResponse: (4, {}),
    SnapshotRequest: (5, {}),
    SnapshotResponse: (6, {}),
    TimeoutNow: (7, {}),
    RecoveryRequest: (8, {"term": Number, "nonce": Number}),
    RecoveryResponse: (
        9,
        {"term": Number, "nonce": Number, "voters": tuple[tuple[Index, tuple[str, ...]], ...]},
    ),
}
"""The kind of each Raft message, and the ranges of its fields that are no plain index."""


def _raft_header(message: type[Message], kind: int, ranges: dict[str, Any]) -> type[RaftHeader]:
    """Returns the header of one kind of Raft message.

    Its message is read into a subclass with the ranges as annotations, and nothing else: raft/ cannot name them itself,
    because it imports no msgspec.
    """
    hints = {field: Index if hint is int else hint for field, hint in get_type_hints(message).items()}
    checked = type(message.__name__, (message,), {"__slots__": (), "__annotations__": hints | ranges})
    header = msgspec.defstruct(message.__name__, [("message", checked)], bases=(RaftHeader,), tag=kind)
    return cast(type[RaftHeader], header)


_KINDS: Final = {message: kind for message, (kind, _) in _MESSAGES.items()}
_HEADERS: Final[list[type[Header]]] = [
    *(_raft_header(message, *rest) for message, rest in _MESSAGES.items()),
    ForwardHeader,
    NotDoneHeader,
    RelayHeader,
    ClientGoneHeader,
    NotAMemberHeader,
    EntriesWantedHeader,
    EntriesLentHeader,
]

encode_header: Final = msgspec.msgpack.Encoder().encode
"""Returns the bytes of a header."""

decode_header: Final[Callable[[bytes], Header]] = msgspec.msgpack.Decoder(reduce(or_, _HEADERS)).decode
"""Returns the header that these bytes are. Raises ValueError for malformed bytes, or a field out of its range."""


PIECE_HEADER: Final = encode_header((15,))
"""The header of every piece of a long body, which has no fields; it is compared, not decoded."""


def encode_raft_header(message: Message, position: int, applied_index_or_time: int) -> bytes:
    """Returns the bytes of a `RaftHeader`, without making one: there are some in every turn."""
    fields: tuple[object, ...] = message
    if isinstance(message, VoteResponse | RecoveryRequest | RecoveryResponse) and not message[-1]:
        fields = message[:-1]  # as before versions 10 and 11, which added these fields: it can be read by all
    return encode_header((_KINDS[type(message)], fields, position, applied_index_or_time))
