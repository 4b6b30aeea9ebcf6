"""The notebook of docs/ runs, and shows what is kept in it."""

from __future__ import annotations

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "docs/checking-a-history.ipynb"
DRAWINGS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
"""The kinds of output in which Jupyter shows an object, and the method that it asks for each."""


def shown(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell as Jupyter does, and returns what that would show: what is printed, and the last expression."""
    statements = ast.parse(code).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    printed, value = StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "text": printed.getvalue()})
    if value is not None:
        drawn = {
            kind: getattr(value, method)() for kind, method in DRAWINGS.items() if hasattr(value, method)
        }
        found.append({"data": {"text/plain": repr(value), **drawn}})
    return found


def test_the_notebook_runs_and_shows_what_is_kept_in_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is the one of all tests; what it writes goes into a directory of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        kept = [
            {"name": one["name"], "text": "".join(one["text"])}
            if one["output_type"] == "stream"
            else {"data": {kind: "".join(lines) for kind, lines in one["data"].items()}}
            for one in cell["outputs"]
        ]
        assert shown("".join(cell["source"]), names) == kept
    assert len(cells) > 5
    assert names["spark"] is spark
