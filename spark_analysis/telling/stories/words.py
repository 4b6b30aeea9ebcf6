"""Operations, moments and names as words of a sentence."""

from typing import Any, Final

Operation = dict[str, Any]

_NAME_MAX: Final = 22
_ESCAPES: Final = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0))}


def visible(text: str) -> str:
    """Text of a recording as it may stand on a terminal: control characters are escapes, as they could change what is
    shown, or what is typed next."""
    return text.translate(_ESCAPES)


def ended(operation: Operation) -> str:
    """Tell what a client knew when the operation had ended."""
    client = client_of(operation)
    match operation["function"]:
        case "append":
            return f"{client} was told that {messages(operation)} {stand(operation)} at {_offsets(operation)}"
        case "read" | "poll" if len(operation.get("values", ())) == 1:
            return f"{client} had been given {messages(operation)} at {_offsets(operation)}"
        case "read" | "poll" if operation.get("values"):
            return f"{client} had been given {_offsets(operation)}"
        case "read" | "poll":
            return f"{client} had been told that nothing is at offset {operation.get('offset')}"
        case "tail":
            return f"{client} had been told that the queue ends before offset {operation.get('offset')}"
        case "head":
            return f"{client} had been told that the queue begins at offset {operation.get('offset')}"
        case "commit_offset":
            return (
                f"{client} had been told that the consumer group's offset {operation.get('offset')} is stored"
            )
        case "fetch_offset":
            return f"{client} had been told that the consumer group's offset is {operation.get('offset', 'unknown')}"
        case function:
            return f"{client}'s {function} had ended"


def began(operation: Operation) -> str:
    """Tell what a client asked then, and what came of it."""
    client = client_of(operation)
    match operation["function"]:
        case "append":
            return f"{client} began to append {messages(operation)}, which came to {_offsets(operation)}"
        case "read" if operation.get("values"):
            return f"{client} read from offset {operation.get('offset')} on and got {_offsets(operation)}"
        case "read":
            return f"{client} asked for offset {operation.get('offset')} and was told that nothing is there"
        case "poll" if operation.get("values"):
            return f"{client} polled and got {_offsets(operation)}"
        case "tail":
            return (
                f"{client} asked where the queue ends and was told: before offset {operation.get('offset')}"
            )
        case "head":
            return f"{client} asked where the queue begins and was told: at offset {operation.get('offset')}"
        case "commit_offset":
            return f"{client} stored the consumer group's offset {operation.get('offset')}"
        case "fetch_offset":
            offset = operation.get("offset", "that there is none")
            return f"{client} asked for the consumer group's offset and was told {offset}"
        case function:
            return f"{client} called {function}"


def messages(operation: Operation) -> str:
    """The messages that an append sends, in words."""
    values = operation.get("values", ())
    return f"message {name_of(values[0])}" if len(values) == 1 else f"{len(values)} messages"


def stand(operation: Operation) -> str:
    """The verb for the messages of an operation."""
    return "stands" if len(operation.get("values", ())) == 1 else "stand"


def _offsets(operation: Operation) -> str:
    first, count = operation.get("first_offset"), len(operation.get("values", ()))
    if first is None:
        return f"{count} messages" if count else "nothing"
    if any(str(value).startswith("... ") for value in operation["values"]) or count < 2:
        return f"offset {first}" + (" and more" if count > 1 else "")
    return f"offsets {first} to {first + count - 1}"


def value_at(operation: Operation, position: int) -> str | None:
    """The message that an operation says is at ``position``; None if it does not say."""
    values, first = operation.get("values", ()), operation.get("first_offset")
    if "value" in operation:
        return str(operation["value"])
    if first is None or not 0 <= position - first < len(values):
        return None
    return str(values[position - first])


def name_of(value: object) -> str:
    """A message's name, its middle left out if it is long."""
    text = str(value)
    return text if len(text) <= _NAME_MAX else f"{text[:8]}…{text[-8:]}"


def client_of(operation: Operation) -> str:
    """The name of the client that called the operation."""
    return name_of(operation.get("client") or "a client")


def duration(nanoseconds: int) -> str:
    """A span of time in the unit that suits it, three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            count = nanoseconds / size
            return f"{count:.{0 if count >= 100 else 1 if count >= 10 else 2}f} {unit}"
    return f"{nanoseconds} ns"


def moment(at_ns: int, first_ns: int) -> str:
    """A moment of the run."""
    return f"At {(at_ns - first_ns) / 1e9:,.3f} s"
