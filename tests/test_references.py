"""Whoever follows a reference in the code to the notes on RocketMQ finds it in docs/references.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTES = ("remoting", "storage", "dledger", "behaviour")
REFERENCE = re.compile(rf"\b({'|'.join(NOTES)})\.md (\d+(?:\.\d+)?)")


def explained() -> dict[str, set[str]]:
    """The sections of each of the notes that the page tells of."""
    sections: dict[str, set[str]] = {}
    for part in (ROOT / "docs/references.md").read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| (\d+) \| (.*?) \|", part, re.MULTILINE)
        sections[part.partition(".md")[0]] = {number for number, _ in rows} | {
            section for number, about in rows for section in re.findall(rf"\b{number}\.\d+\b", about)
        }
    return sections


@pytest.mark.parametrize("room", ["raft", "log", "broker", "simulation", "spark_analysis", "docs", "tests"])
def test_every_reference_is_explained(room: str) -> None:
    sections = explained()
    assert sorted(sections) == sorted(NOTES)
    for path in sorted((ROOT / room).rglob("*")):
        if path.suffix in (".py", ".md"):
            for note, section in REFERENCE.findall(path.read_text()):
                assert section in sections[note], f"{path.relative_to(ROOT)}: {note}.md {section}"
