"""The peer protocol: everything said arrives as it was, however it is cut, and nothing else is believed."""

import tracemalloc

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.peers import protocol as peer_protocol
from broker.peers.headers import PIECE_HEADER
from broker.peers.protocol import (
    FRAME_BYTES_MAX,
    ClientGone,
    Forward,
    Frame,
    NotAMember,
    NotDone,
    PeerDecoder,
    PeerProtocolError,
    RaftFrame,
    Relay,
    encode_frame,
)
from raft.configuration import Configuration
from raft.messages import (
    AppendRequest,
    AppendResponse,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

node = st.sampled_from(["n0", "n1", "n2"])
number = st.integers(0, 1 << 40)
index = st.integers(-1, 1 << 40)
time_ms = st.integers(-1, 1 << 48)
body = st.binary(min_size=1, max_size=200)
configuration = st.sampled_from([Configuration(("n0", "n1")), Configuration(("n0",), ("n1", "n2"))])

frames = st.one_of(
    st.builds(
        RaftFrame,
        st.builds(
            AppendRequest,
            node,
            node,
            number,
            index,
            index,
            st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1, max_size=3).map(tuple),
            index,
            number,
            st.lists(st.tuples(index, configuration), max_size=2).map(tuple),
        ),
        position=number,
        applied_index=st.just(-1),
        body=body,
        time_ms=time_ms,
    ),
    st.builds(
        RaftFrame,
        st.builds(AppendRequest, node, node, number, index, index, st.just(()), index, number, st.just(())),
        position=number,
        applied_index=st.just(-1),
        body=st.just(b""),
        time_ms=time_ms,
    ),
    st.builds(
        AppendResponse,
        node,
        node,
        number,
        st.booleans(),
        index,
        index,
        number,
        index,
        index,
        st.booleans(),
    ).map(RaftFrame),
    st.builds(
        AppendResponse,
        node,
        node,
        number,
        st.just(True),
        index,
        index,
        number,
        st.just(-1),
        st.just(0),
        st.just(False),
    ).map(RaftFrame),
    st.builds(VoteRequest, node, node, number, index, index, st.booleans(), st.booleans()).map(RaftFrame),
    st.builds(VoteResponse, node, node, number, number, st.booleans(), st.booleans(), st.booleans()).map(
        RaftFrame
    ),
    st.builds(RecoveryRequest, node, node, number, number, st.booleans()).map(RaftFrame),
    st.builds(
        RecoveryResponse,
        node,
        node,
        st.integers(1, 99),
        number,
        st.just(True),
        st.booleans(),
        index,
        st.lists(st.tuples(index, st.lists(node).map(tuple))).map(tuple),
    ).map(RaftFrame),
    st.builds(
        RecoveryResponse,
        node,
        node,
        st.just(0),
        number,
        st.just(False),
        st.just(False),
        st.just(-1),
        st.just(()),
    ).map(RaftFrame),
    st.builds(
        RaftFrame,
        st.builds(SnapshotRequest, node, node, number, index, index, index, configuration),
        position=number,
        applied_index=index,
        body=body,
        time_ms=st.just(-1),
    ),
    st.builds(SnapshotResponse, node, node, number, index).map(RaftFrame),
    st.builds(TimeoutNow, node, node, number).map(RaftFrame),
    st.builds(Forward, number, st.binary(min_size=8, max_size=8), number, body),
    st.builds(NotDone, number, st.integers(-(1 << 31), (1 << 31) - 1), number),
    st.builds(Relay, number, body),
    st.builds(ClientGone, number),
    st.builds(NotAMember, number),
)


def _as_bytes(frame: Frame) -> bytes:
    return b"".join(encode_frame(frame))


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 60), min_size=1))
@example([RaftFrame(AppendRequest("n0", "n1", 0, 0, -1, (), 0, 0))], [1])
def test_frames_come_back_whole_however_the_bytes_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(_as_bytes, sent))
    decoder = PeerDecoder()
    received: list[Frame] = []
    at = k = 0
    while at < len(data):
        step = cuts[k % len(cuts)]
        received += decoder.feed(data[at : at + step])
        at, k = at + step, k + 1
    assert received == sent


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    try:
        PeerDecoder().feed(data)
    except PeerProtocolError:
        pass


@given(frames, st.data())
def test_a_changed_header_raises_nothing_but_a_protocol_error(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(_as_bytes(frame))
    at = data.draw(st.integers(6, len(encoded) - 1))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        PeerDecoder().feed(bytes(encoded))
    except PeerProtocolError:
        pass


def _frame_with_header(header: object, body_bytes: bytes = b"") -> bytes:
    encoded = msgspec.msgpack.encode(header)
    size = 2 + len(encoded) + len(body_bytes)
    return size.to_bytes(4, "big") + len(encoded).to_bytes(2, "big") + encoded + body_bytes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_frame_with_header([31, 1]), "Invalid value 31"),
        (_frame_with_header(["dance", 1]), "Expected `int`, got `str`"),
        (_frame_with_header({"kind": 1}), "Expected `array`, got `object`"),
        (_frame_with_header([12]), "at least length 2, got 1"),
        (_frame_with_header([12, 1, 1]), "at most length"),
        (_frame_with_header([12, -1]), "Expected `int` >= 0"),
        (_frame_with_header([12, True]), "got `bool`"),
        (_frame_with_header([12, 1 << 62]), "Expected `int` <="),
        (_frame_with_header([12, 1 << 63]), "Expected `int` <="),
        (_frame_with_header([10, 1, b"123", 1]), "length >= 8"),
        (_frame_with_header([10, 1, b"123456789", 1]), "host of 9 bytes"),
        (_frame_with_header([10, 1, b"\0" * 8, -1]), r"Expected `int` >= 0 - at `\$\[3\]`"),
        (_frame_with_header([11, 1, 1 << 31, 1]), r"Expected `int` <= .* at `\$\[2\]`"),
        (_frame_with_header([11, 1, 1, 1], b"x"), "NotDoneHeader with a body of 1 bytes"),
        (_frame_with_header([3, ["n0", "n1", 1, 0, 0, 1, False], 0, -1]), "Expected `bool`, got `int`"),
        (_frame_with_header([3, ["n0", "n1", 1, -2, 0, True, False], 0, -1]), "Expected `int` >= -1"),
        (_frame_with_header([3, ["n0", "n1", 1, 0, 0, True, False], 0, -1], b"x"), "VoteRequest with a body"),
        (_frame_with_header([3, ["n0", "n1", 1, 0, 0, True, False, 9], 0, -1]), "got 8"),
        (_frame_with_header([1, ["n0", "n1", 1, 0, 0, [[1, 1]], 0, 1, []], 0, -1]), "do not go together"),
        (_frame_with_header([1, ["n0", "n1", 1, 0, 0, [], 0, 1, []], 0, -1], b"x"), "do not go together"),
        (_frame_with_header([1, ["n0", "n1", 1, 0, 0, [], 0, 1, []], 0, (1 << 48) + 1]), "at the time 2814"),
        (_frame_with_header([1, ["n0", "n1", 1, 0, 0, [[1, 0]], 0, 1, []], 0, -1], b"x"), "`int` >= 1"),
        (_frame_with_header([1, ["n0", "n1", 1, 0, 0, [[0, 1]], 0, 1, []], 0, -1], b"x"), "`int` >= 1"),
        (_frame_with_header([1, ["n0", "n1", 1, 0, 0, [[1, 1]], 0, 1, []], -1, -1], b"x"), "`int` >= 0"),
        (
            _frame_with_header(
                [1, ["n0", "n1", 1, 0, 0, [[1, 1]], 0, 1, [[1, {"voters": ["n0", "n0"]}]]], 0, -1], b"x"
            ),
            "named twice",
        ),
        (_frame_with_header([4, ["n0", "n1", 1, 1, True, False, 1], 0, -1]), "Expected `bool`"),
        (_frame_with_header([8, ["n0", "n1", 1, -1], 0, -1]), "Expected `int` >= 0"),
        (_frame_with_header([9, ["n0", "n1", 0, 5, True, False, -1], 0, -1]), "has_history"),
        (_frame_with_header([9, ["n0", "n1", 3, 5, False, False, -1], 0, -1]), "has_history"),
        (_frame_with_header([7, ["n0", b"n1", 3], 0, -1]), "Expected `str`, got `bytes`"),
        (b"\0\0\0\x09\0\x07\x92\x0c\xa1\xff\0\0\0", "header cannot be read"),
        (b"\0\0\x20\2\x20\0\x92\x0c" + b"\x91" * 8190, "got `array`"),
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\0\0", "frame of"),
        (b"\0\0\0\2\0\1", "header of 1"),
    ],
)
def test_bad_frames_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(PeerProtocolError, match=reason):
        PeerDecoder().feed(data)


def test_an_append_s_body_is_the_slice_that_was_given() -> None:
    entries = memoryview(bytearray(b"entries in the mapping"))
    message = AppendRequest("n0", "n1", 1, -1, 0, ((1, 1),), -1, 0)
    head, sent = encode_frame(RaftFrame(message, 0, body=entries))
    assert sent is entries, "nothing is copied on the way to the socket"
    assert isinstance(head, bytes)


@given(st.lists(frames, min_size=1, max_size=4), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_a_long_body_goes_in_pieces_and_arrives_whole(sent: list[Frame], cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_protocol, "WHOLE_BODY_BYTES_MAX", 20)
        patch.setattr(peer_protocol, "PIECE_BYTES", 7)
        data = b"".join(bytes(buffer) for frame in sent for buffer in encode_frame(frame))
    decoder = PeerDecoder()
    received: list[Frame] = []
    while data:
        cut = cuts[len(data) % len(cuts)]
        received += decoder.feed(data[:cut])
        data = data[cut:]
    assert received == sent


def test_a_snapshot_that_no_frame_could_carry_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_protocol, "FRAME_BYTES_MAX", 1000)
    monkeypatch.setattr(peer_protocol, "WHOLE_BODY_BYTES_MAX", 500)
    monkeypatch.setattr(peer_protocol, "PIECE_BYTES", 300)
    request = SnapshotRequest("n0", "n1", 3, 10, 2, 5, Configuration(("n0", "n1")))
    snapshot = RaftFrame(request, 77, 12, bytes(range(250)) * 5)
    buffers = encode_frame(snapshot)
    assert len(buffers) == 2 * 5 + 1
    assert PeerDecoder().feed(b"".join(bytes(buffer) for buffer in buffers)) == [snapshot]
    monkeypatch.setattr(peer_protocol, "BODY_BYTES_MAX", 1249)
    with pytest.raises(PeerProtocolError, match="1250 bytes, at most 1249 can be sent"):
        encode_frame(snapshot)
    with pytest.raises(PeerProtocolError, match="1250 bytes in pieces"):
        PeerDecoder().feed(b"".join(bytes(buffer) for buffer in buffers))


def test_a_body_in_very_short_pieces_takes_about_as_much_memory_as_it_has_bytes() -> None:
    """One by one they would take many times as much."""
    size, count = 10, 40_000
    pieces = _frame_with_header(msgspec.Raw(PIECE_HEADER), bytes(size)) * count
    decoder = PeerDecoder()
    tracemalloc.start()
    try:
        assert decoder.feed(pieces) == []
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * size * count
