"""The handshake with which a link between two nodes begins: each learns that the other knows the group's secret.

    dialling side                                   accepting side
    Hello(versions, group, names, address,
          format, nonce)                         ->
                                                 <- Challenge(nonce, proof, version, format)
    Proof(proof)                                 ->
    the link's frames                            ->

A proof is HMAC-SHA-256, keyed with the secret, of who proves (its role), the hello, both nonces, the version that the
accepting side has chosen, and from version 8 on the formats that both ends read: whoever changes what is said of these
on its way is found out. (Of version 7 the formats are no part: there the first one is all that an end can read, and it
is taken for no more.) What time it is, which a hello says, too, is not covered: nor are the entries that carry the time
afterwards. The secret itself
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
from dataclasses import replace
from typing import Final

from broker.peers.protocol import (
    Challenge,
    HandshakeFrame,
    Hello,
    PeerProtocolError,
    Proof,
    common_version,
)
from broker.state.release import FIRST_FORMAT, Release

NONCE_BYTES: Final = 16

_FORMATS_SINCE: Final = 8
"""The version of the protocol since which the ends tell the formats that they read."""

HANDSHAKE_FRAME_BYTES_MAX: Final = 4096
"""No frame of a handshake is longer. A stranger can make a node keep no more than that."""


class Dialling:
    """The dialling side. It sends `hello`, gives what comes back to `answered`, and sends what that returns.

    `group_format` is the format that its group has.
    """

    def __init__(self, hello: Hello, secret: str, release: Release, group_format: int) -> None:
        assert len(hello.nonce) == NONCE_BYTES, "a fresh one for every link"
        self.hello = hello
        self._secret = secret
        self._release = release
        self._group_format = group_format
        self.version = 0
        """The version of the link, once it is answered."""

    def answered(self, frame: HandshakeFrame) -> Proof:
        """Returns the proof to send.

        Raises `PeerProtocolError` if the other side does not know the secret, or does not read what the group writes.
        """
        if not isinstance(frame, Challenge):
            raise PeerProtocolError("the answer to the hello is no challenge")
        if len(frame.nonce) != NONCE_BYTES:
            raise PeerProtocolError(f"a nonce of {len(frame.nonce)} bytes")
        # The proof before all else that the challenge says: without it nothing of that is believed.
        expected = _proof(self._secret, "accepting", self.hello, frame)
        if not hmac.compare_digest(expected, frame.proof):
            raise PeerProtocolError("its peer_secret is another than this node's")
        # The other side has chosen from the range of the hello: one outside of it is refused here.
        self.version = common_version(self._release, frame.version, frame.version)
        _check_format(frame.version, frame.newest_format, self._group_format)
        return Proof(_proof(self._secret, "dialling", self.hello, frame))


class Accepting:
    """The accepting side. It gives each frame that comes to `received`, and sends what that returns, until the peer is
    known."""

    def __init__(
        self,
        group: str,
        node_id: str,
        secret: str,
        nonce: Callable[[int], bytes],
        release: Release,
        group_format: int,
    ) -> None:
        self._group = group
        self._node_id = node_id
        self._secret = secret
        self._nonce = nonce(NONCE_BYTES)
        self._release = release
        self._group_format = group_format
        self._hello: Hello | None = None
        self._challenge: Challenge
        """The answer to `_hello`, once that has come."""
        self.source: str | None = None
        """The peer, once it has proved that it is one. Then `_hello` is set, too."""

    @property
    def hello(self) -> Hello:
        """The greeting of the peer, once `source` is set."""
        assert self._hello is not None, "a peer is known by its hello"
        return self._hello

    def received(self, frame: HandshakeFrame) -> Challenge | None:
        """Returns the challenge for a hello, and None for a proof, which sets `source`. Raises `PeerProtocolError`."""
        assert self.source is None, "the handshake is over"
        if self._hello is None:
            hello = self._hello = self._checked(frame)
            version = common_version(self._release, hello.oldest_version, hello.version)
            _check_format(version, hello.newest_format, self._group_format)
            # The proof covers what the challenge says, and is put in behind that.
            challenge = Challenge(self._nonce, b"", version, self._release.newest_format)
            proof = _proof(self._secret, "accepting", hello, challenge)
            self._challenge = replace(challenge, proof=proof)
            return self._challenge
        if not isinstance(frame, Proof):
            raise PeerProtocolError("the challenge is not answered by a proof")
        expected = _proof(self._secret, "dialling", self._hello, self._challenge)
        if not hmac.compare_digest(expected, frame.proof):
            raise PeerProtocolError("its peer_secret is another than this node's")
        self.source = self._hello.source
        return None

    def _checked(self, frame: HandshakeFrame) -> Hello:
        """Returns the hello that the first frame is. Raises `PeerProtocolError` for one that is not answered."""
        if not isinstance(frame, Hello):
            raise PeerProtocolError("the first frame is no hello")
        if frame.group != self._group:
            raise PeerProtocolError(f"group {frame.group!r}, this node is of group {self._group!r}")
        # The address that it dialled has become this node's.
        if frame.target != self._node_id:
            raise PeerProtocolError(f"it looks for {frame.target!r}, this node is {self._node_id!r}")
        if frame.source == self._node_id:
            raise PeerProtocolError(f"two nodes are called {frame.source!r}")
        if len(frame.nonce) != NONCE_BYTES:
            raise PeerProtocolError(f"a nonce of {len(frame.nonce)} bytes")
        return frame


def _check_format(version: int, newest_format: int, group_format: int) -> None:
    """Raises `PeerProtocolError` for a node that could not read what this node's group writes."""
    # Of that version no proof covers what an end says of its formats.
    if version < _FORMATS_SINCE:
        newest_format = FIRST_FORMAT
    if newest_format < group_format:
        raise PeerProtocolError(
            f"its release of Trivet reads what groups write up to format {newest_format}, this group writes "
            f"format {group_format}: run the release there that the other nodes run"
        )


def _proof(secret: str, role: str, hello: Hello, challenge: Challenge) -> bytes:
    numbers = f"{hello.oldest_version} {hello.version} {challenge.version}"
    # Of version 7 the formats are no part: an end that speaks it reads the first one only, whatever was said on the
    # way.
    if challenge.version >= _FORMATS_SINCE:
        numbers += f" {hello.newest_format} {challenge.newest_format} {hello.release}"
    # Each part with its length: no two different hellos have the same text.
    parts = (
        role.encode(),
        numbers.encode(),
        hello.group.encode(),
        hello.source.encode(),
        hello.target.encode(),
        hello.address.encode(),
        hello.nonce,
        challenge.nonce,
    )
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret.encode(), text, "sha256")
