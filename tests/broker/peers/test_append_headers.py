"""The short way of the two frequent headers says the same as the general one, and takes nothing that it refuses."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.peers.append_headers import AppendHeaders, encode_acknowledgement, encode_append
from broker.peers.protocol import PeerDecoder, PeerProtocolError, RaftFrame, encode_frame
from raft.configuration import Configuration
from raft.messages import AppendRequest, AppendResponse

number = st.integers(0, (1 << 62) - 1)
term = st.integers(1, (1 << 62) - 1)
name = st.text(max_size=30)


def _headers() -> AppendHeaders:
    headers = AppendHeaders()
    headers.learn("n0", "n1")
    return headers


@given(name, name, number, number, number, st.none() | st.tuples(term, term), number, number, number)
def test_an_append_is_the_cbor_of_its_items(
    source: str,
    target: str,
    own_term: int,
    prev_index: int,
    prev_term: int,
    span: tuple[int, int] | None,
    commit_index: int,
    round_number: int,
    position: int,
) -> None:
    spans = () if span is None else (span,)
    message = AppendRequest(
        source, target, own_term, prev_index, prev_term, spans, commit_index, round_number
    )
    encoded = encode_append(message, position)
    assert encoded is not None
    assert cbor2.loads(encoded) == [
        "append",
        source,
        target,
        own_term,
        prev_index,
        prev_term,
        [list(span) for span in spans],
        commit_index,
        round_number,
        [],
        position,
    ]
    headers = AppendHeaders()
    assert headers.append(encoded) is headers.heartbeat(encoded) is None, (
        "the ends of the link are not known yet"
    )
    headers.learn(source, target)
    assert headers.append(encoded) == (None if span is None else (message, position))
    assert headers.heartbeat(encoded) == ((message, position) if span is None else None)


@given(name, name, number, number, number, number)
def test_an_acknowledgement_is_the_cbor_of_its_items(
    source: str, target: str, own_term: int, match_index: int, log_index: int, round_number: int
) -> None:
    message = AppendResponse(source, target, own_term, True, match_index, log_index, round_number)
    encoded = encode_acknowledgement(message)
    assert encoded is not None
    assert cbor2.loads(encoded) == [
        "append_response",
        source,
        target,
        own_term,
        True,
        match_index,
        log_index,
        round_number,
        -1,
        0,
        False,
    ]
    headers = AppendHeaders()
    assert headers.acknowledgement(encoded) is None
    headers.learn(source, target)
    assert headers.acknowledgement(encoded) == message


APPEND = AppendRequest("n0", "n1", 3, 10, 2, ((3, 4),), 9, 7)
HEARTBEAT = APPEND._replace(spans=())
ACKNOWLEDGEMENT = AppendResponse("n0", "n1", 3, True, 10, 12, 7)


@pytest.mark.parametrize(
    "message",
    [
        APPEND._replace(prev_index=-1),
        APPEND._replace(commit_index=-1),
        APPEND._replace(spans=((2, 1), (3, 4))),
        APPEND._replace(configurations=((11, Configuration(("n0", "n1"))),)),
    ],
)
def test_an_unusual_append_is_left_to_the_general_way(message: AppendRequest) -> None:
    assert encode_append(message, 100) is None
    frame = RaftFrame(message, 100, body=b"entries")
    assert PeerDecoder().feed(b"".join(encode_frame(frame))) == [frame]


@pytest.mark.parametrize(
    "message",
    [
        ACKNOWLEDGEMENT._replace(success=False),
        ACKNOWLEDGEMENT._replace(match_index=-1),
        ACKNOWLEDGEMENT._replace(log_index=-1, match_index=-1),
        ACKNOWLEDGEMENT._replace(hint_index=4),
        ACKNOWLEDGEMENT._replace(hint_term=1),
        ACKNOWLEDGEMENT._replace(recovering=True),
    ],
)
def test_an_unusual_answer_is_left_to_the_general_way(message: AppendResponse) -> None:
    assert encode_acknowledgement(message) is None
    frame = RaftFrame(message)
    assert PeerDecoder().feed(b"".join(encode_frame(frame))) == [frame]


@given(st.data())
def test_what_the_short_way_reads_the_general_one_reads_alike(data: st.DataObject) -> None:
    """One or two bytes changed: either both take it for the same message, or only the general way is asked."""
    frame = data.draw(
        st.sampled_from(
            (RaftFrame(APPEND, 100, body=b"entries"), RaftFrame(HEARTBEAT, 100), RaftFrame(ACKNOWLEDGEMENT))
        )
    )
    body = bytes(frame.body)
    head = bytes(encode_frame(frame)[0])
    header = bytearray(head[6:])
    for _ in range(data.draw(st.integers(0, 2))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    changed = head[:6] + bytes(header) + body
    headers = _headers()
    read = headers.append if body else headers.heartbeat if frame.position else headers.acknowledgement
    short = read(bytes(header))
    try:
        (general,) = PeerDecoder().feed(changed)
    except PeerProtocolError:
        assert short is None
        return
    assert isinstance(general, RaftFrame)
    if isinstance(short, AppendResponse):
        assert short == general.message
    elif short is not None:
        assert short == (general.message, general.position)


def test_a_link_is_read_the_short_way_after_its_first_message() -> None:
    frame = RaftFrame(APPEND, 100, body=b"entries")
    answer = RaftFrame(ACKNOWLEDGEMENT)
    heartbeat = RaftFrame(HEARTBEAT, 100)
    other = RaftFrame(APPEND._replace(source="n2"), 100, body=b"entries")
    decoder = PeerDecoder()
    for sent in (frame, answer, heartbeat, frame, other, heartbeat, answer, frame):
        assert decoder.feed(b"".join(encode_frame(sent))) == [sent]
