"""``trivet produce``: what it tells when not all messages can be stored."""

from __future__ import annotations

from pathlib import Path

from broker.testing.broker import broker
from tests.cli.conftest import CommandLine, Outcome


def counts(outcome: Outcome) -> list[str]:
    """The lines that say how many messages were stored; the broker's log may be among them."""
    return [line for line in outcome.out.splitlines() if " stored in " in line]


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
        assert counts(outcome) == ["2 messages stored in T"]
        outcome = trivet("produce", "T", "x", "--namesrv", name_server)
        assert (outcome.exit_code, counts(outcome)) == (0, ["1 message stored in T"])
        bodies.write_bytes(b"x" * (5 << 20))
        assert counts(trivet("produce", "T", "--file", str(bodies), "--namesrv", name_server)) == []
