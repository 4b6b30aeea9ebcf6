"""The handshake with which a link between two nodes begins: each learns that the other knows the group's secret.

    dialling side                                   accepting side
    Hello(versions, group, names, address, nonce)->
                                                 <- Challenge(nonce, proof, version)
    Proof(proof)                                 ->
    the link's frames                            ->

A proof is HMAC-SHA-256, keyed with the secret, of who proves (its role), the hello, both nonces, and the version that
the accepting side has chosen: whoever changes what is said of versions on its way is found out. The secret itself
never leaves a node; a recorded proof is good for no other link, because each side chose one of the nonces; and neither
side's proof can be played back as the other's, because the roles differ. Both sides prove before either believes
anything: a stranger who poses as the leader's target learns no more than one who dials.

The handshake says who is at the other end when the link begins. It does not encrypt or sign what follows: against
someone who can change bytes under way, `tls.peer_ca` does. Without a secret the same frames are exchanged with an
empty key, so that there is one protocol, and a node with a secret does not talk to one without.

Pure: bytes of a random nonce come from the caller.
"""

import hmac
from collections.abc import Callable
from typing import Final

from broker.peers.protocol import (
    Challenge,
    HandshakeFrame,
    Hello,
    PeerProtocolError,
    Proof,
    common_version,
)

NONCE_BYTES: Final = 16

HANDSHAKE_FRAME_BYTES_MAX: Final = 4096
"""No frame of a handshake is longer. A stranger can make a node keep no more than that."""


class Dialling:
    """The dialling side. It sends `hello`, gives what comes back to `answered`, and sends what that returns."""

    def __init__(self, hello: Hello, secret: str) -> None:
        assert len(hello.nonce) == NONCE_BYTES, "a fresh one for every link"
        self.hello = hello
        self._secret = secret

    def answered(self, frame: HandshakeFrame) -> Proof:
        """Returns the proof to send. Raises `PeerProtocolError` if the other side does not know the secret."""
        if not isinstance(frame, Challenge):
            raise PeerProtocolError("the answer to the hello is no challenge")
        if len(frame.nonce) != NONCE_BYTES:
            raise PeerProtocolError(f"a nonce of {len(frame.nonce)} bytes")
        expected = _proof(self._secret, "accepting", self.hello, frame.nonce, frame.version)
        if not hmac.compare_digest(expected, frame.proof):
            raise PeerProtocolError("its peer_secret is another than this node's")
        common_version(frame.version, frame.version)
        return Proof(_proof(self._secret, "dialling", self.hello, frame.nonce, frame.version))


class Accepting:
    """The accepting side. It gives each frame that comes to `received`, and sends what that returns, until the peer is
    known."""

    def __init__(self, group: str, node_id: str, secret: str, nonce: Callable[[int], bytes]) -> None:
        self._group = group
        self._node_id = node_id
        self._secret = secret
        self._nonce = nonce(NONCE_BYTES)
        self._hello: Hello | None = None
        self._version = 0
        self.source: str | None = None
        """The peer, once it has proved that it is one. Then `_hello` is set, too."""

    @property
    def hello(self) -> Hello:
        """What the peer has said of itself, once `source` is set."""
        assert self._hello is not None, "a peer is known by its hello"
        return self._hello

    def received(self, frame: HandshakeFrame) -> Challenge | None:
        """Returns the challenge for a hello, and None for a proof, which sets `source`. Raises `PeerProtocolError`."""
        assert self.source is None, "the handshake is over"
        if self._hello is None:
            hello = self._hello = self._checked(frame)
            self._version = common_version(hello.oldest_version, hello.version)
            proof = _proof(self._secret, "accepting", hello, self._nonce, self._version)
            return Challenge(self._nonce, proof, self._version)
        if not isinstance(frame, Proof):
            raise PeerProtocolError("the challenge is not answered by a proof")
        expected = _proof(self._secret, "dialling", self._hello, self._nonce, self._version)
        if not hmac.compare_digest(expected, frame.proof):
            raise PeerProtocolError("its peer_secret is another than this node's")
        self.source = self._hello.source
        return None

    def _checked(self, frame: HandshakeFrame) -> Hello:
        if not isinstance(frame, Hello):
            raise PeerProtocolError("the first frame is no hello")
        if frame.group != self._group:
            raise PeerProtocolError(f"group {frame.group!r}, this node is of group {self._group!r}")
        if frame.target != self._node_id:
            raise PeerProtocolError(f"it looks for {frame.target!r}, this node is {self._node_id!r}")
        if frame.source == self._node_id:
            raise PeerProtocolError(f"two nodes are called {frame.source!r}")
        if len(frame.nonce) != NONCE_BYTES:
            raise PeerProtocolError(f"a nonce of {len(frame.nonce)} bytes")
        return frame


def _proof(secret: str, role: str, hello: Hello, nonce: bytes, version: int) -> bytes:
    # Each part with its length: no two different hellos have the same text.
    parts = (
        role.encode(),
        f"{hello.oldest_version} {hello.version} {version}".encode(),
        hello.group.encode(),
        hello.source.encode(),
        hello.target.encode(),
        hello.address.encode(),
        hello.nonce,
        nonce,
    )
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret.encode(), text, "sha256")
