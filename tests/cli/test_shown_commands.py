"""Commands that pages show are ones that the command line takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(command: str) -> list[str]:
    """The lines of all pages that show the command by itself, without what stands behind two blanks."""
    lines = [line for page in PAGES for line in page.read_text().splitlines() if line.startswith("    ")]
    found = {
        line.strip().partition("  ")[0] for line in lines if line.strip().startswith(f"trivet {command} ")
    }
    return sorted(found)


@pytest.mark.parametrize("line", shown("simulate"))
def test_a_simulation_that_a_page_shows_begins(
    trivet: CommandLine, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("{}")
    begun: list[str] = []

    def begin(*_: object, **__: object) -> int:
        begun.append(line)
        return 0

    monkeypatch.setattr("broker.tools.cli.simulate._run", begin)
    monkeypatch.setattr("broker.tools.cli.simulate._read_plan", lambda _: _Plan())
    monkeypatch.setattr("broker.tools.cli.simulate.Batch.run", begin)
    outcome = trivet(*shlex.split(line)[1:])
    assert (outcome.exit_code, outcome.err, begun) == (0, "", [line])


class _Plan:
    seed = 7


def test_every_page_is_looked_at() -> None:
    assert "trivet simulate --seed 7" in shown("simulate")
    assert any(line.startswith("trivet simulate --seeds 1-5 ") for line in shown("simulate"))
