"""``trivet topic``: create, list and describe topics."""

from __future__ import annotations

from cyclopts import App

app = App(name="topic", help="Create, list and describe topics.", help_format="plaintext")
