"""``trivet produce``: what it tells when not all messages can be stored."""

from __future__ import annotations

from pathlib import Path

from broker.testing.broker import broker
from tests.cli.conftest import CommandLine


def test_a_failure_behind_messages_that_are_stored_says_how_many_these_are(
    trivet: CommandLine, tmp_path: Path
) -> None:
    bodies = tmp_path / "bodies"
    bodies.write_bytes(b"one\ntwo\n" + b"x" * (5 << 20) + b"\nthree\n")
    with broker() as name_server:
        name_server.create_topic("T")
        outcome = trivet("produce", "T", "--file", str(bodies), "--namesrv", name_server)
        assert outcome.exit_code == 2
        assert "at most" in outcome.complaint
        assert outcome.out == "2 messages stored in T\n"
        outcome = trivet("produce", "T", "x", "--namesrv", name_server)
        assert (outcome.exit_code, outcome.out) == (0, "1 message stored in T\n")
        bodies.write_bytes(b"x" * (5 << 20))
        assert trivet("produce", "T", "--file", str(bodies), "--namesrv", name_server).out == ""
