"""``trivet doctor`` on a terminal: what others wrote can change nothing there."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from broker.operations import doctor as operations
from broker.operations.doctor import Diagnosis, Finding
from broker.tools.cli import run
from broker.tools.cli.doctor import doctor
from broker.tools.cli.options import Servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def test_control_characters_in_every_part_of_a_finding_are_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding(
        check="names",
        severity="warning",
        about="b\x1b[1m",
        what="odd\x1b[2m",
        advice="run: trivet topic delete x\x1b[3m",
    )

    @asynccontextmanager
    async def admin(_: Servers) -> AsyncIterator[None]:
        yield None

    async def diagnose(*_: object) -> Diagnosis:
        return Diagnosis(checks=("names",), findings=(finding,))

    monkeypatch.setattr(Servers, "admin", admin)
    monkeypatch.setattr(operations, "diagnose", diagnose)
    assert trio.run(doctor) == 0
    printed = capsys.readouterr().out
    assert "delete x" in printed
    assert "\x1b" not in printed


def test_a_group_that_should_be_there_is_handed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the exit code is that of any other fault."""

    @asynccontextmanager
    async def admin(_: Servers) -> AsyncIterator[None]:
        yield None

    async def diagnose(_: object, expected: list[str]) -> Diagnosis:
        gone = [Finding(check="c", severity="fault", about=name, what="w", advice="a") for name in expected]
        return Diagnosis(checks=("c",), findings=tuple(gone))

    monkeypatch.setattr(Servers, "admin", admin)
    monkeypatch.setattr(operations, "diagnose", diagnose)
    assert run(["doctor", "--expect", "a", "--expect", "b"]) == 1
    assert capsys.readouterr().out.splitlines()[::2] == [
        "  fault  a: w",
        "  fault  b: w",
        "every check has found something",
    ]
    assert run(["doctor"]) == 0
