"""docs/client.md: every block of Python in it runs, against a name server and a broker of their own."""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import trivet
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import LIMIT_S, options

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = ROOT / "docs" / "client.md"


def blocks() -> Iterator[tuple[int, str]]:
    """The blocks of Python, each with the number of its first line."""
    text = GUIDE.read_text()
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


async def run_block(line: int, block: str, name_server: str) -> None:
    """Run a block as the body of an async function, with errors at the page's own lines."""
    source = "\n" * (line - 2) + "async def block():\n" + textwrap.indent(block, "    ")
    names: dict[str, Any] = {name: getattr(trivet, name) for name in trivet.__all__}
    names |= {"trio": trio, "functools": functools, "tempfile": tempfile, "name_server": name_server}
    exec(compile(source, str(GUIDE), "exec"), names)
    with trio.fail_after(LIMIT_S):
        await names["block"]()


async def test_every_block_runs(tmp_path: Path) -> None:
    whole, *bodies = blocks()
    assert len(bodies) >= 14
    async with LocalCluster(options(tmp_path, nodes=1)) as cluster:
        await cluster.wait_ready()
        address = cluster.name_server_address
        program = whole[1].replace("127.0.0.1:9876", address)
        finished = await trio.run_process([sys.executable, "-c", program], capture_stdout=True, cwd=ROOT)
        assert finished.stdout.splitlines() == [b"stored at 0", b"b'hello'"]
        for line, block in bodies:
            try:
                await run_block(line, block, address)
            except Exception as error:
                error.add_note(f"in the block at line {line} of {GUIDE.name}")
                raise
