"""The hello between peers: both sides prove that they know the secret, and nothing recorded is good twice."""

from __future__ import annotations

import dataclasses
import random

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.peers.handshake import HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    Challenge,
    ClientGone,
    HandshakeFrame,
    Hello,
    PeerDecoder,
    PeerProtocolError,
    Proof,
    encode_frame,
    take_frame,
)
from broker.state.release import FIRST_FORMAT, THIS_RELEASE, Release

SECRET = "correct horse battery staple"
OTHER = "wrong horse battery staple"


class Ends:
    """Both ends of one link from n0 to n1, the dialling and the accepting one."""

    def __init__(
        self,
        dialling_secret: str = SECRET,
        accepting_secret: str = SECRET,
        seed: int = 1,
        releases: tuple[Release, Release] = (THIS_RELEASE, THIS_RELEASE),
        group_formats: tuple[int, int] = (FIRST_FORMAT, FIRST_FORMAT),
    ) -> None:
        source = random.Random(seed)
        release = releases[0]
        hello = Hello(
            release.newest_protocol,
            "g",
            "n0",
            "n1",
            "127.0.0.1:1",
            source.randbytes(NONCE_BYTES),
            release.oldest_protocol,
            release.newest_format,
            release.name,
        )
        self.dialling = Dialling(hello, dialling_secret, release, group_formats[0])
        self.accepting = Accepting(
            "g", "n1", accepting_secret, source.randbytes, releases[1], group_formats[1]
        )

    def challenge(self) -> Challenge:
        challenge = self.accepting.received(self.dialling.hello)
        assert challenge is not None
        return challenge


@pytest.mark.parametrize("secret", ["", SECRET])
def test_who_knows_the_secret_is_believed(secret: str) -> None:
    ends = Ends(secret, secret)
    proof = ends.dialling.answered(ends.challenge())
    before = ends.accepting.source
    assert before is None
    assert ends.accepting.received(proof) is None
    assert ends.accepting.source == "n0"
    assert ends.accepting.hello.address == "127.0.0.1:1"


@pytest.mark.parametrize("secrets", [(SECRET, OTHER), (SECRET, ""), ("", SECRET)])
def test_each_side_refuses_another_secret(secrets: tuple[str, str]) -> None:
    ends = Ends(*secrets)
    challenge = ends.challenge()
    with pytest.raises(PeerProtocolError, match="peer_secret is another"):
        ends.dialling.answered(challenge)
    proof_of_its_own = Dialling(ends.dialling.hello, secrets[0], THIS_RELEASE, FIRST_FORMAT)
    forged = Accepting("g", "n1", secrets[0], lambda _: challenge.nonce, THIS_RELEASE, FIRST_FORMAT)
    answer = forged.received(ends.dialling.hello)
    assert answer is not None
    with pytest.raises(PeerProtocolError, match="peer_secret is another"):
        ends.accepting.received(proof_of_its_own.answered(answer))
    before = ends.accepting.source
    assert before is None


def test_recorded_proof_is_good_for_no_other_link() -> None:
    first = Ends(seed=1)
    proof = first.dialling.answered(first.challenge())
    second = Ends(seed=2)
    second.accepting.received(first.dialling.hello)
    with pytest.raises(PeerProtocolError):
        second.accepting.received(proof)


def test_proof_of_the_accepting_side_is_none_of_the_dialling_side() -> None:
    """A stranger who sends back what he was sent, or has a node answer itself, proves nothing."""
    ends = Ends()
    challenge = ends.challenge()
    with pytest.raises(PeerProtocolError):
        ends.accepting.received(Proof(challenge.proof))


@pytest.mark.parametrize("change", [{"source": "n2"}, {"address": "127.0.0.1:2"}])
def test_what_the_hello_says_is_part_of_the_proof(change: dict[str, str]) -> None:
    """Whoever changes the hello on its way has the proof of the one that was sent, which does not fit."""
    ends = Ends()
    challenge = ends.accepting.received(dataclasses.replace(ends.dialling.hello, **change))  # type: ignore[arg-type]
    assert challenge is not None
    with pytest.raises(PeerProtocolError):
        ends.dialling.answered(challenge)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group": "h"}, "group 'h', this node is of group 'g'"),
        ({"target": "n2"}, "looks for 'n2'"),
        ({"source": "n1"}, "two nodes are called 'n1'"),
        ({"nonce": b""}, "nonce of 0 bytes"),
    ],
)
def test_hello_that_does_not_fit(change: dict[str, object], words: str) -> None:
    ends = Ends()
    hello = dataclasses.replace(ends.dialling.hello, **change)  # type: ignore[arg-type]
    with pytest.raises(PeerProtocolError, match=words):
        ends.accepting.received(hello)


def test_other_frames_are_no_handshake() -> None:
    with pytest.raises(PeerProtocolError, match="no hello"):
        Ends().accepting.received(Proof(b""))
    ends = Ends()
    ends.challenge()
    with pytest.raises(PeerProtocolError, match="not answered by a proof"):
        ends.accepting.received(ends.dialling.hello)
    with pytest.raises(PeerProtocolError, match="no challenge"):
        ends.dialling.answered(Proof(b""))


def _hello_frame(*fields: object, nonce: bytes = b"") -> bytes:
    header = cbor2.dumps(("hello", *fields))
    return (2 + len(header) + len(nonce)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header + nonce


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((2, "g", "n0", "n1", ""), "version 2"),
        ((6, "g", "n0", "n1", "127.0.0.1:1"), "version 6"),
        ((6, "g", "n0", "n1", "127.0.0.1:1", 4), "versions 4 to 6"),
        (
            (99, "g", "n0", "n1", "127.0.0.1:1", 98, 7, "9.9", 5, True, "a field of that release"),
            "versions 98 to 99",
        ),
        ((5, "g", "n0", "n1", "127.0.0.1:1", 9), "versions 9 to 5"),
    ],
)
def test_hello_without_a_common_version_is_refused_and_both_ranges_are_named(
    fields: tuple[object, ...], said: str
) -> None:
    taken = take_frame(_hello_frame(*fields, nonce=bytes(NONCE_BYTES)), HANDSHAKE_FRAME_BYTES_MAX)
    assert taken is not None
    with pytest.raises(PeerProtocolError, match=f"{said} .* this node versions 7 to 11"):
        Ends().accepting.received(taken[0])


def test_hello_of_a_later_release_is_read_whatever_it_adds() -> None:
    frame = _hello_frame(11, "g", "n0", "n1", "a:1", 7, 4, "0.5", 1_700_000_000_000, True, "more", nonce=b"n")
    taken = take_frame(frame, HANDSHAKE_FRAME_BYTES_MAX)
    assert taken == (Hello(11, "g", "n0", "n1", "a:1", b"n", 7, 4, "0.5", 1_700_000_000_000, True), b"")


@pytest.mark.parametrize(
    ("own", "other", "common"),
    [((7, 7), (7, 7), 7), ((5, 8), (7, 9), 8), ((7, 9), (5, 8), 8), ((4, 9), (5, 6), 6), ((5, 6), (6, 9), 6)],
)
def test_both_ends_take_the_newest_version_that_both_speak(
    own: tuple[int, int], other: tuple[int, int], common: int
) -> None:
    ends = Ends(releases=(Release("other", *other, FIRST_FORMAT), Release("own", *own, FIRST_FORMAT)))
    challenge = ends.challenge()
    assert challenge.version == common
    assert ends.accepting.received(ends.dialling.answered(challenge)) is None
    assert ends.accepting.source == "n0"


def test_version_that_was_changed_on_its_way_is_found_out() -> None:
    ends = Ends()
    challenge = ends.challenge()
    with pytest.raises(PeerProtocolError, match="peer_secret is another"):
        ends.dialling.answered(dataclasses.replace(challenge, version=challenge.version - 1))
    changed = dataclasses.replace(ends.dialling.hello, oldest_version=6)
    ends = Ends()
    answer = ends.accepting.received(changed)
    assert answer is not None
    with pytest.raises(PeerProtocolError, match="peer_secret is another"):
        ends.dialling.answered(answer)


def test_frames_of_a_handshake_have_these_bytes() -> None:
    """Every release reads those of every other: they may only grow at their ends."""
    golden: dict[HandshakeFrame, str] = {
        Hello(
            7, "g", "n0", "n1", "h:1", b"nonce", 6, 3, "r"
        ): "0000001f0018896568656c6c6f076167626e30626e3163683a31060361726e6f6e6365",
        Hello(
            7, "g", "n0", "n1", "h:1", b"nonce", 7, 3, "r", 1_700_000_000_000, True
        ): "0000002900228b6568656c6c6f076167626e30626e3163683a31070361721b0000018bcfe56800f56e6f6e6365",
        Challenge(
            b"nonce", b"proof", 7, 3
        ): "0000001b00198569 6368616c6c656e6765456e6f6e63654570726f6f660703",
        Proof(b"proof"): "0000000f000d826570726f6f664570726f6f66",
    }
    for frame, data in golden.items():
        assert b"".join(encode_frame(frame)) == bytes.fromhex(data)
        assert take_frame(bytes.fromhex(data), HANDSHAKE_FRAME_BYTES_MAX) == (frame, b"")


def test_frames_of_the_first_release_are_read() -> None:
    """They say nothing of formats: it reads the first one."""
    hello = bytes.fromhex("0000001c0015876568656c6c6f076167626e30626e3163683a31066e6f6e6365")
    assert take_frame(hello, HANDSHAKE_FRAME_BYTES_MAX) == (
        Hello(7, "g", "n0", "n1", "h:1", b"nonce", 6),
        b"",
    )
    challenge = bytes.fromhex("0000001a001884696368616c6c656e6765456e6f6e63654570726f6f6607")
    assert take_frame(challenge, HANDSHAKE_FRAME_BYTES_MAX) == (Challenge(b"nonce", b"proof", 7), b"")


FIRST_RELEASE = Release("0.1.0", 7, 7, FIRST_FORMAT)


@pytest.mark.parametrize("releases", [(FIRST_RELEASE, THIS_RELEASE), (THIS_RELEASE, FIRST_RELEASE)])
def test_the_first_release_and_this_one_speak_while_their_group_writes_the_first_format(
    releases: tuple[Release, Release],
) -> None:
    ends = Ends(releases=releases)
    challenge = ends.challenge()
    assert challenge.version == 7
    assert ends.accepting.received(ends.dialling.answered(challenge)) is None
    assert ends.accepting.source == "n0"


def test_who_could_not_read_what_the_group_writes_is_refused_by_both_ends() -> None:
    words = "reads what groups write up to format 1, this group writes format 2"
    with pytest.raises(PeerProtocolError, match=words):
        Ends(releases=(FIRST_RELEASE, THIS_RELEASE), group_formats=(1, 2)).challenge()
    ends = Ends(releases=(THIS_RELEASE, FIRST_RELEASE), group_formats=(2, 1))
    with pytest.raises(PeerProtocolError, match=words):
        ends.dialling.answered(ends.challenge())


def test_formats_are_part_of_the_proof() -> None:
    ends = Ends()
    challenge = ends.challenge()
    with pytest.raises(PeerProtocolError, match="peer_secret is another"):
        ends.dialling.answered(dataclasses.replace(challenge, newest_format=9))
    ends = Ends()
    answer = ends.accepting.received(dataclasses.replace(ends.dialling.hello, newest_format=9))
    assert answer is not None
    with pytest.raises(PeerProtocolError, match="peer_secret is another"):
        ends.dialling.answered(answer)


def test_formats_that_nothing_proves_are_not_believed() -> None:
    """A link of version 7 has proofs that say nothing of formats: who adds them on the way gains nothing."""
    ends = Ends(releases=(FIRST_RELEASE, THIS_RELEASE), group_formats=(1, 2))
    with pytest.raises(PeerProtocolError, match="up to format 1"):
        ends.accepting.received(dataclasses.replace(ends.dialling.hello, newest_format=2))


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_arbitrary_bytes_raise_nothing_but_a_protocol_error(header: bytes, body: bytes) -> None:
    frame = (2 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header + body
    for data in (header, frame):
        try:
            take_frame(data, HANDSHAKE_FRAME_BYTES_MAX)
        except PeerProtocolError:
            pass


@given(
    st.sampled_from(["hello", "challenge", "proof"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=7) | st.dictionaries(st.integers() | st.text(max_size=2), inner)
        ),
    ),
)
def test_fields_of_any_kind_raise_nothing_but_a_protocol_error(kind: str, fields: object) -> None:
    header = cbor2.dumps([kind, *fields] if isinstance(fields, list) else fields)
    try:
        take_frame((2 + len(header)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header, 1 << 20)
    except PeerProtocolError:
        pass


@pytest.mark.parametrize(
    "fields",
    [
        ("hello", 1 << 15_000, "g", "n0", "n1", "", 1 << 15_000),
        ("hello", 1 << 15_000, "g", "n0", "n1", "", 7),
        ("hello", 8, "g", "n0", "n1", "", 7, 1 << 15_000),
        ("challenge", b"", b"", 1 << 15_000),
        ("challenge", b"", b"", 8, 1 << 15_000),
    ],
)
def test_numbers_that_are_too_long_to_be_written_down_are_refused(fields: tuple[object, ...]) -> None:
    """Python writes none of more than 4,300 digits, and a proof covers them as text."""
    header = cbor2.dumps(fields)
    frame = (2 + len(header)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header
    with pytest.raises(PeerProtocolError, match="header cannot be read"):
        take_frame(frame, HANDSHAKE_FRAME_BYTES_MAX)


@pytest.mark.parametrize(
    "more",
    [
        cbor2.CBORTag(35, "(?i)" + "[\\w\u0130-\uffff]" * 400),  # Python compiles it for four seconds
        cbor2.CBORTag(35, "a"),
        cbor2.CBORTag(4, [3, 10]),
        1 << 64,
        [],
        {},
    ],
)
def test_a_stranger_has_nothing_made_but_plain_values(more: object) -> None:
    """Behind the fields of a hello, where a later release may have others: what stands there is looked at, too."""
    for fields in (("hello", more), ("hello", 11, "g", "n0", "n1", "a:1", 7, 4, "0.5", 1, True, more)):
        header = cbor2.dumps(fields)
        frame = (2 + len(header)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header
        assert len(frame) <= HANDSHAKE_FRAME_BYTES_MAX
        with pytest.raises(PeerProtocolError, match="a value of the major type"):
            take_frame(frame, HANDSHAKE_FRAME_BYTES_MAX)


def test_frames_of_a_handshake_are_cut_off_what_follows() -> None:
    hello = b"".join(encode_frame(Ends().dialling.hello))
    for cut in range(len(hello)):
        assert take_frame(hello[:cut], HANDSHAKE_FRAME_BYTES_MAX) is None
    assert take_frame(hello + b"rest", HANDSHAKE_FRAME_BYTES_MAX) == (Ends().dialling.hello, b"rest")
    with pytest.raises(PeerProtocolError, match="frame of"):
        take_frame(b"\x00\x00\x20\x00\x00\x10", HANDSHAKE_FRAME_BYTES_MAX)


def test_no_handshake_inside_a_link() -> None:
    for frame in (Ends().dialling.hello, Ends().challenge(), Proof(b"proof")):
        with pytest.raises(PeerProtocolError, match="header cannot be read"):
            PeerDecoder().feed(b"".join(encode_frame(frame)))


def test_no_other_frame_inside_a_handshake() -> None:
    with pytest.raises(PeerProtocolError, match="header cannot be read"):
        take_frame(b"".join(encode_frame(ClientGone(1))), HANDSHAKE_FRAME_BYTES_MAX)
