"""The hello between peers: both sides prove that they know the secret, and nothing recorded is good twice."""

from __future__ import annotations

import dataclasses
import random

import cbor2
import pytest

from broker.peers.handshake import HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    PROTOCOL_VERSION,
    Challenge,
    ClientGone,
    Hello,
    PeerDecoder,
    PeerProtocolError,
    Proof,
    encode_frame,
    take_frame,
)

SECRET = "correct horse battery staple"
OTHER = "wrong horse battery staple"


class Ends:
    """Both ends of one link from n0 to n1."""

    def __init__(self, dialling_secret: str = SECRET, accepting_secret: str = SECRET, seed: int = 1) -> None:
        source = random.Random(seed)
        hello = Hello(PROTOCOL_VERSION, "g", "n0", "n1", "127.0.0.1:1", source.randbytes(NONCE_BYTES))
        self.dialling = Dialling(hello, dialling_secret)
        self.accepting = Accepting("g", "n1", accepting_secret, source.randbytes)

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
    proof_of_its_own = Dialling(ends.dialling.hello, secrets[0])
    forged = Accepting("g", "n1", secrets[0], lambda _: challenge.nonce)
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
        Ends().accepting.received(ClientGone(1))
    ends = Ends()
    ends.challenge()
    with pytest.raises(PeerProtocolError, match="not answered by a proof"):
        ends.accepting.received(ends.dialling.hello)
    with pytest.raises(PeerProtocolError, match="no challenge"):
        ends.dialling.answered(ClientGone(1))


def test_older_version_is_named() -> None:
    header = cbor2.dumps(("hello", 2, "g", "n0", "n1"))
    frame = (2 + len(header)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header
    with pytest.raises(PeerProtocolError, match=f"version 2 .* this node version {PROTOCOL_VERSION}"):
        take_frame(frame, HANDSHAKE_FRAME_BYTES_MAX)


def test_frames_of_a_handshake_are_cut_off_what_follows() -> None:
    hello = b"".join(encode_frame(Ends().dialling.hello))
    for cut in range(len(hello)):
        assert take_frame(hello[:cut], HANDSHAKE_FRAME_BYTES_MAX) is None
    assert take_frame(hello + b"rest", HANDSHAKE_FRAME_BYTES_MAX) == (Ends().dialling.hello, b"rest")
    with pytest.raises(PeerProtocolError, match="frame of"):
        take_frame(b"\x00\x00\x20\x00\x00\x10", HANDSHAKE_FRAME_BYTES_MAX)


def test_no_handshake_inside_a_link() -> None:
    ends = Ends()
    data = b"".join(encode_frame(ends.challenge()))
    assert isinstance(PeerDecoder().feed(data)[0], Challenge)
