"""The two headers of which every turn has some, appends and their acknowledgements, in CBOR of fixed width.

A general encoder takes longer for such a header than the message takes on its way through Raft: it asks of every item
what it is. Here the numbers go into a prepared place, always as eight bytes, which CBOR allows (RFC 8949, 4.2 only
recommends the shortest form), so that a reader needs to know nothing of this module, and this one reads what it wrote
with a single look. What does not have the usual form, such as an index of -1 or entries of two terms, is left to the
general way on both ends: every function here returns None then.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

import cbor2

from raft.messages import AppendRequest, AppendResponse

_UINT64: Final = 0x1B
_INDEX_END: Final = 1 << 62

# Each number: its initial byte, and eight bytes. The items of an append behind source and target: term, prev_index,
# prev_term, spans, commit_index, round, configurations, position.
_EMPTY: Final = Struct(">BQBQBQBBQBQBBQ")
_ONE_SPAN: Final = Struct(">BQBQBQHBQBQBQBQBBQ")
_NO_SPANS: Final = 0x80
_ONE_SPAN_OF_TWO: Final = 0x8182
_NO_CONFIGURATIONS: Final = 0x80
# Of an acknowledgement: term, success, match_index, index, round, hint_index -1, hint_term 0, recovering False.
_SUCCESS: Final = Struct(">BQBBQBQBQ3s")
_TRUE: Final = 0xF5
_NO_HINT: Final = b"\x20\x00\xf4"


@lru_cache(64)
def _begin(kind: str, source: str, target: str) -> bytes:
    """The head of an array of 11 items, and the first three."""
    return b"\x8b" + cbor2.dumps(kind) + cbor2.dumps(source) + cbor2.dumps(target)


def encode_append(message: AppendRequest, position: int) -> bytes | None:
    """The header of an append whose entries have one term, or of one without entries."""
    prev_index, commit_index, spans = message.prev_index, message.commit_index, message.spans
    if prev_index < 0 or message.prev_term < 0 or commit_index < 0 or message.configurations:
        return None
    begin = _begin("append", message.source, message.target)
    if not spans:
        return begin + _EMPTY.pack(
            _UINT64,
            message.term,
            _UINT64,
            prev_index,
            _UINT64,
            message.prev_term,
            _NO_SPANS,
            _UINT64,
            commit_index,
            _UINT64,
            message.round,
            _NO_CONFIGURATIONS,
            _UINT64,
            position,
        )
    if len(spans) > 1:
        return None
    ((span_term, count),) = spans
    return begin + _ONE_SPAN.pack(
        _UINT64,
        message.term,
        _UINT64,
        prev_index,
        _UINT64,
        message.prev_term,
        _ONE_SPAN_OF_TWO,
        _UINT64,
        span_term,
        _UINT64,
        count,
        _UINT64,
        commit_index,
        _UINT64,
        message.round,
        _NO_CONFIGURATIONS,
        _UINT64,
        position,
    )


def encode_acknowledgement(message: AppendResponse) -> bytes | None:
    """The header of a success of a node that is not recovering."""
    match_index, index = message.match_index, message.log_index
    if not message.success or message.recovering or match_index < 0 or index < 0:
        return None
    if message.hint_index != -1 or message.hint_term != 0:
        return None
    return _begin("append_response", message.source, message.target) + _SUCCESS.pack(
        _UINT64,
        message.term,
        _TRUE,
        _UINT64,
        match_index,
        _UINT64,
        index,
        _UINT64,
        message.round,
        _NO_HINT,
    )


class AppendHeaders:
    """Reads the headers of one link, on which all frames have the same source and target.

    `learn` tells which; before, and for what is not of the usual form, the others return None.
    """

    __slots__ = ("_acknowledgement", "_append", "_source", "_target")

    def __init__(self) -> None:
        self._append = self._acknowledgement = b""
        self._source = self._target = ""

    def learn(self, source: str, target: str) -> None:
        """These are the ends of a message that was read otherwise."""
        self._source, self._target = source, target
        self._append = _begin("append", source, target)
        self._acknowledgement = _begin("append_response", source, target)

    def append(self, header: bytes) -> tuple[AppendRequest, int] | None:
        """An append with entries of one term, and their position."""
        begin = self._append
        at = len(begin)
        if len(header) != at + _ONE_SPAN.size or header[:at] != begin or not at:
            return None
        (
            a,
            term,
            b,
            prev_index,
            c,
            prev_term,
            spans,
            d,
            span_term,
            e,
            count,
            f,
            commit_index,
            g,
            round_,
            configurations,
            h,
            position,
        ) = _ONE_SPAN.unpack_from(header, at)
        if (
            not a == b == c == d == e == f == g == h == _UINT64
            or spans != _ONE_SPAN_OF_TWO
            or configurations != _NO_CONFIGURATIONS
            or not span_term
            or not count
            or (term | prev_index | prev_term | span_term | count | commit_index | round_ | position)
            >= _INDEX_END
        ):
            return None
        message = AppendRequest(
            self._source,
            self._target,
            term,
            prev_index,
            prev_term,
            ((span_term, count),),
            commit_index,
            round_,
        )
        return message, position

    def heartbeat(self, header: bytes) -> tuple[AppendRequest, int] | None:
        """An append without entries, and its position."""
        begin = self._append
        at = len(begin)
        if len(header) != at + _EMPTY.size or header[:at] != begin or not at:
            return None
        (
            a,
            term,
            b,
            prev_index,
            c,
            prev_term,
            spans,
            d,
            commit_index,
            e,
            round_,
            configurations,
            f,
            position,
        ) = _EMPTY.unpack_from(header, at)
        if (
            not a == b == c == d == e == f == _UINT64
            or spans != _NO_SPANS
            or configurations != _NO_CONFIGURATIONS
            or (term | prev_index | prev_term | commit_index | round_ | position) >= _INDEX_END
        ):
            return None
        message = AppendRequest(
            self._source, self._target, term, prev_index, prev_term, (), commit_index, round_
        )
        return message, position

    def acknowledgement(self, header: bytes) -> AppendResponse | None:
        """A success without a hint."""
        begin = self._acknowledgement
        at = len(begin)
        if len(header) != at + _SUCCESS.size or header[:at] != begin or not at:
            return None
        a, term, success, b, match_index, c, index, d, round_, rest = _SUCCESS.unpack_from(header, at)
        if (
            not a == b == c == d == _UINT64
            or success != _TRUE
            or rest != _NO_HINT
            or (term | match_index | index | round_) >= _INDEX_END
        ):
            return None
        return AppendResponse(self._source, self._target, term, True, match_index, index, round_)
