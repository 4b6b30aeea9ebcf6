"""Stored messages on stdout: one JSON object a line for scripts, a block of lines for people."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import TYPE_CHECKING

from broker.tools.cli.moments import moment_text
from broker.tools.cli.output import visible

if TYPE_CHECKING:
    from broker.operations.queue_browsing import StoredMessage

_SHOWN_CHARACTERS = 200
"""The characters of a body that a list shows; `message show` shows all."""


def message_fields(message: StoredMessage) -> dict[str, object]:
    """Return a message as ``--json`` prints it, the names as those of ``trivet consume --json``: those of its fields
    here, but for the body."""
    fields = dataclasses.asdict(message) | {"keys": list(message.keys)}
    del fields["body"], fields["damage"]
    return fields | body_fields(message.body, message.damage)


def body_fields(body: bytes | None, damage: str | None) -> dict[str, object]:
    """Return the field for a body: as text, else in base64, or for None how it is damaged."""
    if body is None:
        return {"damaged": damage}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def print_message_json(message: StoredMessage) -> None:
    """Print one line."""
    print(json.dumps(message_fields(message), ensure_ascii=False), flush=True)


def print_message(message: StoredMessage) -> None:
    """Print a line with the message's place, and one with the beginning of its body."""
    marks = " ".join(filter(None, [message.tags, *message.keys]))
    place = f"{message.broker}/{message.queue}@{message.offset}"
    print(
        visible(f"{moment_text(message.stored_ms or None)}  {place}  {message.message_id}  {marks}".rstrip())
    )
    print(f"    {visible(body_text(message)[:_SHOWN_CHARACTERS])}", flush=True)


def body_text(message: StoredMessage) -> str:
    """Return a body for people; one that is no text as its bytes."""
    if message.body is None:
        return f"({message.damage})"
    try:
        return message.body.decode()
    except UnicodeDecodeError:
        return repr(message.body)[2:-1]
