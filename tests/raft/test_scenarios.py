"""The transcripts in scenarios/: read them as documentation; `--rewrite-scenarios` writes them anew.

transcript.py explains their language. A rewritten file must be read before it is committed: it is the expectation.
"""

from pathlib import Path

import pytest

from tests.raft.transcript import run

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    transcript = run(text)
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(transcript)
    else:
        assert transcript == text


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 12
