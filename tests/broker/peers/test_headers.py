"""The bytes of every header of this version of the protocol: whoever changes one of them changes the version."""

import pytest

from broker.peers.protocol import (
    ClientGone,
    Forward,
    Frame,
    NotAMember,
    NotDone,
    PeerDecoder,
    RaftFrame,
    Relay,
    encode_frame,
)
from broker.state.release import THIS_RELEASE
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

PAIR = Configuration(("n0", "n1"))
GROWN = Configuration(("n0", "n1"), ("n2",))


def test_the_version_is_the_one_that_these_bytes_belong_to() -> None:
    assert (THIS_RELEASE.oldest_protocol, THIS_RELEASE.newest_protocol) == (7, 11)


@pytest.mark.parametrize(
    ("frame", "golden"),
    [
        (
            RaftFrame(
                AppendRequest("n0", "n1", 3, 10, 2, ((2, 1), (3, 4)), 9, 7, ((11, GROWN),)),
                4096,
                -1,
                b"entries",
            ),
            (
                "00000041 00389401 99a26e30 a26e3103 0a029292 02019203 04090791 920b82a6 "
                "766f7465 727392a2 6e30a26e 31a86c65 61726e65 727391a2 6e32cd10 00ff656e 74726965 73"
            ),
        ),
        (
            RaftFrame(AppendRequest("n0", "n1", 3, -1, 0, (), -1, 7)),
            "00000014 00129401 99a26e30 a26e3103 ff0090ff 079000ff",
        ),
        (
            RaftFrame(AppendRequest("n0", "n1", 3, -1, 0, (), -1, 7), time_ms=1_700_000_000_000),
            "0000001c 001a9401 99a26e30 a26e3103 ff0090ff 079000cf 0000018b cfe56800",
        ),
        (
            RaftFrame(AppendResponse("n1", "n0", 3, True, 10, 12, 7)),
            "00000015 00139402 9aa26e31 a26e3003 c30a0c07 ff00c200 ff",
        ),
        (
            RaftFrame(AppendResponse("n1", "n0", 3, False, -1, 12, 7, 8, 2, True)),
            "00000015 00139402 9aa26e31 a26e3003 c2ff0c07 0802c300 ff",
        ),
        (
            RaftFrame(VoteRequest("n0", "n1", 4, 12, 3, True, False)),
            "00000012 00109403 97a26e30 a26e3104 0c03c3c2 00ff",
        ),
        (
            RaftFrame(VoteResponse("n1", "n0", 3, 4, True, True, False)),
            "00000012 00109404 97a26e31 a26e3003 04c3c3c2 00ff",
        ),
        (
            RaftFrame(VoteResponse("n1", "n0", 3, 4, True, False, True, ("n0", "n2"))),
            "00000019 00179404 98a26e31 a26e3003 04c3c2c3 92a26e30 a26e3200 ff",
        ),
        (
            RaftFrame(SnapshotRequest("n0", "n1", 3, 100, 2, 40, PAIR), 65536, 99, b"state"),
            (
                "00000033 002c9405 97a26e30 a26e3103 64022882 a6766f74 65727392 a26e30a2 "
                "6e31a86c 6561726e 65727390 ce000100 00637374 617465"
            ),
        ),
        (RaftFrame(SnapshotResponse("n1", "n0", 3, 99)), "0000000f 000d9406 94a26e31 a26e3003 6300ff"),
        (RaftFrame(TimeoutNow("n0", "n1", 3)), "0000000e 000c9407 93a26e30 a26e3103 00ff"),
        (
            RaftFrame(RecoveryRequest("n1", "n0", 0, 1234567890123)),
            "00000017 00159408 94a26e31 a26e3000 cf000001 1f71fb04 cb00ff",
        ),
        (
            RaftFrame(RecoveryRequest("n1", "n0", 2, 1234567890123, True)),
            "00000018 00169408 95a26e31 a26e3002 cf000001 1f71fb04 cbc300ff",
        ),
        (
            RaftFrame(RecoveryResponse("n0", "n1", 3, 1234567890123, True, True, 99)),
            "0000001a 00189409 97a26e30 a26e3103 cf000001 1f71fb04 cbc3c363 00ff",
        ),
        (
            RaftFrame(
                RecoveryResponse(
                    "n0", "n1", 3, 1234567890123, True, voters=((-1, ("n0", "n1")), (7, ("n0",)))
                )
            ),
            "0000002a 00289409 98a26e30 a26e3103 cf000001 1f71fb04 cbc3c2ff 9292ff92 a26e30a2 6e319207 91a26e30 00ff",
        ),
        (
            Forward(5, bytes([127, 0, 0, 1, 0, 0, 42, 159]), 3, b"frame"),
            "00000015 000e940a 05c4087f 00000100 002a9f03 6672616d 65",
        ),
        (NotDone(5, -7, 3), "00000007 0005940b 05f903"),
        (Relay(5, b"bytes"), "0000000a 0003920c 05627974 6573"),
        (ClientGone(5), "00000005 0003920d 05"),
        (NotAMember(40), "00000005 0003920e 28"),
    ],
)
def test_a_frame_has_these_bytes(frame: Frame, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert b"".join(encode_frame(frame)) == data
    (read,) = PeerDecoder().feed(data)
    assert read == frame
    if isinstance(read, RaftFrame) and isinstance(frame, RaftFrame):
        assert isinstance(read.message, type(frame.message)), "messages of different kinds may be equal"
