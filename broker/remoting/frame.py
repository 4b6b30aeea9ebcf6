"""FrameDecoder: the bytes of one connection, in whatever pieces they arrive, cut into commands.

What is copied: nothing of a read that begins with a frame's start, except that headers and bodies up to
``BODY_COPY_MAX`` are sliced out (cheaper than a memoryview, and a command that waits in a long poll does
not keep the whole read alive); larger bodies are memoryviews of the bytes they arrived in. The incomplete
frame at the end of a read is kept as pieces of its own and joined once, when it is whole, so a 16 MiB body in small
pieces costs one copy. Very small pieces are joined before that: each is an object, which takes more memory than it
brings bytes. So what is held takes little more than `pending_size` says, however it was sent.

All limits of bytes are known from a frame's first 8 bytes, so a connection never holds more than one frame and one
read. That of fields is seen to before any of them is made: whoever sends a frame has not shown an account yet.
"""

import struct

from msgspec import structs

from broker.remoting.command import (
    FRAME_SIZE_MAX,
    JSON,
    ROCKETMQ,
    RemotingCommand,
    decode_command,
    has_more_fields,
    request,
)
from broker.remoting.errors import FrameError, FrameErrorReason

BODY_COPY_MAX = 4096
"""Bodies up to this many bytes are copied out of the read they came in, larger ones are views of it."""

CLIENT_HEADER_BYTES_MAX = 256 * 1024
"""The longest header that servers read of a client. All that is long in a request is in its body, but for a message's
properties: a record holds 32,767 bytes of them, six times as many in JSON, where each may be a control character."""

CLIENT_FIELDS_MAX = 128
"""The most extFields that servers read of a client. RocketMQ's own send some 20, signatures counted."""

NO_OPAQUE = -1
"""The opaque of the response to a request whose own is not known. Clients count from 0 on."""

PIECE_BYTES_LEAST = 1024
"""The pieces of an incomplete frame have so many bytes on average, but for a few."""
_PIECES_FEW = 16

_FRAME_START = struct.Struct(
    ">II"
)  # length after this field; serialize type (8 bits) and header length (24 bits)
_TLS_HANDSHAKE = 0x16


class BrokenStreamError(FrameError):
    """Bytes that are no frame, in a stream.

    ``commands`` are the whole frames that came before them in the same read: they are good requests, and what becomes
    of them must not depend on how the bytes were cut into reads. ``request`` is what the sender is told of the reason
    as the response to; None where it does not seem to speak this protocol at all.
    """

    def __init__(
        self,
        reason: FrameErrorReason,
        detail: str,
        commands: list[RemotingCommand],
        request: RemotingCommand | None = None,
    ) -> None:
        super().__init__(reason, detail)
        self.commands = commands
        self.request = request


class _BoundError(FrameError):
    """A frame that is longer, or has more in its header, than is allowed, of a sender that speaks the protocol.

    `request` stands for it, so that the sender gets a response and not only a closed connection.
    """

    def __init__(self, reason: FrameErrorReason, detail: str, request: RemotingCommand) -> None:
        super().__init__(reason, detail)
        self.request = request


class FrameDecoder:
    """Cuts one connection's bytes into commands; one decoder a connection and direction."""

    __slots__ = (
        "_broken",
        "_fields_max",
        "_header_bytes_max",
        "_max_frame_size",
        "_needed",
        "_pending",
        "_pending_size",
    )

    def __init__(
        self,
        max_frame_size: int = FRAME_SIZE_MAX,
        header_bytes_max: int = FRAME_SIZE_MAX,
        fields_max: int = FRAME_SIZE_MAX,
    ) -> None:
        self._max_frame_size = max_frame_size
        self._header_bytes_max = header_bytes_max
        self._fields_max = fields_max
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._needed = 4
        self._broken: tuple[FrameErrorReason, str] | None = None
        """The reason why the stream is no good any more. The error itself is not kept: its traceback has the calls in
        which it was raised, with all that was read, and through them this decoder: a cycle, which stays until the
        collector comes.
        """

    @property
    def pending_size(self) -> int:
        """Bytes held of a frame that is not whole; not 0 at a stream's end means that it was cut off."""
        return self._pending_size

    def forget(self) -> None:
        """Frees what is held of a frame that is not whole. To be called when the rest of it does not come any more."""
        self._pending = []
        self._pending_size = 0

    def feed(self, data: bytes) -> list[RemotingCommand]:
        """The commands completed by ``data``, in order.

        ``data`` must be bytes, which nobody changes: bodies may be views of it. Raises BrokenStreamError for bytes
        that are no frame; its ``commands`` are the good ones before them. The connection is lost then, and
        so every later call raises the same reason.
        """
        if self._broken is not None:
            raise BrokenStreamError(*self._broken, [])
        if self._pending_size:
            self._pending.append(data)
            self._pending_size += len(data)
            if self._pending_size < self._needed:
                count = len(self._pending)
                if count > _PIECES_FEW and count * PIECE_BYTES_LEAST > self._pending_size:
                    self._pending = [b"".join(self._pending)]
                return []
            data = b"".join(self._pending)
            self._pending.clear()
            self._pending_size = 0
        commands: list[RemotingCommand] = []
        try:
            self._cut(data, commands)
        except FrameError as error:
            self._broken = error.reason, error.detail
            request = error.request if isinstance(error, _BoundError) else None
        else:
            return commands
        # Out here nothing that is raised has the first error, and so the read, as its context.
        raise BrokenStreamError(*self._broken, commands, request)

    def _cut(self, data: bytes, commands: list[RemotingCommand]) -> None:
        """Append the whole frames of ``data`` to ``commands`` and keep the rest."""
        at = 0
        size = len(data)
        max_length = self._max_frame_size - 4
        while size - at >= 8:
            total_length, type_and_header_length = _FRAME_START.unpack_from(data, at)
            header_length = type_and_header_length & 0xFFFFFF
            body_at = at + 8 + header_length
            end = at + 4 + total_length
            if total_length > max_length or body_at > end or header_length > self._header_bytes_max:
                raise self._bad_lengths(data[at : at + 8])
            if end > size:
                self._keep(data, at, 4 + total_length)
                return
            body = data[body_at:end] if end - body_at <= BODY_COPY_MAX else memoryview(data)[body_at:end]
            command = decode_command(type_and_header_length >> 24, data[at + 8 : body_at], body)
            # Fewer bytes than four for each cannot be too many fields: of most headers that is all there is to see.
            if header_length > 4 * self._fields_max and has_more_fields(command, self._fields_max):
                raise _BoundError(
                    FrameErrorReason.TOO_MANY_FIELDS,
                    f"the header has more than {self._fields_max} fields",
                    structs.replace(command, header=None, body=b""),
                )
            commands.append(command)
            at = end
        if at < size:
            if size - at < 4:
                self._keep(data, at, 4)
                return
            if not 4 <= int.from_bytes(data[at : at + 4], "big") <= max_length:
                raise self._bad_lengths(data[at : at + 4])
            self._keep(data, at, 8)

    def _keep(self, data: bytes, at: int, needed: int) -> None:
        self._pending.append(data[at:])  # a view would keep all of the read, and what else came with it
        self._pending_size = len(data) - at
        self._needed = needed
        # A frame that is whole would wait for the next one, and its sender for the response.
        assert self._pending_size < needed, f"{self._pending_size} bytes are kept of a frame of {needed}"

    def _bad_lengths(self, start: bytes) -> FrameError:
        """The error for a frame start whose lengths are impossible; names the usual strangers on a port."""
        total_length = int.from_bytes(start[:4], "big")
        header_length = int.from_bytes(start[5:8], "big")
        if total_length > self._max_frame_size - 4:
            detail = f"{total_length + 4} bytes, at most {self._max_frame_size} are allowed"
            if start[0] == _TLS_HANDSHAKE:
                detail += " (this looks like a TLS handshake, and TLS is not enabled)"
            elif start[:4].isascii() and start[:4].decode().isprintable():
                detail += f" (this looks like text beginning {start[:4].decode()!r}, such as HTTP)"
            else:
                return _BoundError(FrameErrorReason.OVERSIZED, detail, request(0, opaque=NO_OPAQUE))
            return FrameError(FrameErrorReason.OVERSIZED, detail)
        if total_length < 4:
            return FrameError(FrameErrorReason.TOO_SHORT, f"length {total_length}, a header length takes 4")
        if header_length + 4 > total_length:
            return FrameError(
                FrameErrorReason.HEADER_LONGER_THAN_FRAME,
                f"a header of {header_length} bytes in a frame of length {total_length}",
            )
        detail = f"{header_length} bytes, at most {self._header_bytes_max} are allowed"
        serialization = start[4]
        if serialization not in (JSON, ROCKETMQ):
            return FrameError(FrameErrorReason.HEADER_TOO_LONG, detail)
        stub = request(0, opaque=NO_OPAQUE, serialization=serialization)
        return _BoundError(FrameErrorReason.HEADER_TOO_LONG, detail, stub)


def whole_frames(data: bytes) -> list[bytes]:
    """Cuts bytes of which `whole_commands` has read the commands into the frame of each."""
    frames: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at:end])
        at = end
    return frames


def whole_commands(data: bytes) -> list[RemotingCommand]:
    """The commands of bytes that are whole frames, at least one. Raises FrameError for others."""
    decoder = FrameDecoder()
    commands = decoder.feed(data)
    if not commands or decoder.pending_size:
        raise FrameError(FrameErrorReason.TOO_SHORT, f"{len(data)} bytes are no whole frames")
    return commands
