"""Traces of a message that clients have made themselves: RocketMQ's Java clients do where they are told to, into a
topic.

Each trace is a message of RMQ_SYS_TRACE_TOPIC whose keys are the ids of the messages that it tells of, and whose body
has records of fields (`TraceDataEncoder`): a send, a consumption that begins, one that has ended. Later releases
append fields. Who may publish there may write anything, so what cannot be read is passed over.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from broker.operations.asking import Groups
from broker.operations.queue_browsing import StoredMessage, copies_of, number_in, stored_message
from broker.state.topic_rules import TRACE_TOPIC

_RECORD_END: Final = "\x02"
_FIELD_END: Final = "\x01"
_RESULTS: Final = ("success", "time out", "exception", "returned null", "failed")
"""The ends of a consumption, by their numbers (`ConsumeReturnType`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A send or a consumption as its client tells it. ``client`` is the address that the trace came from.

    ``at_ms`` is when it began by the client's clock. A consumption of which only the beginning is known has neither
    ``took_ms`` nor ``result``.
    """

    what: Literal["sent", "consumed"]
    group: str
    client: str
    at_ms: int
    took_ms: int | None
    result: str | None
    times: int = 0
    """For a consumption, the number of retries of the message before."""


async def client_traces(groups: Groups, message_id: str) -> list[Traced]:
    """Return what clients have traced of a message, the earliest first; nothing where none does, or none may be read.

    Raises ClientError.
    """
    views = await copies_of(groups, TRACE_TOPIC, message_id, unique=False)
    return traced((stored_message(view) for view in views), message_id)


def traced(messages: Iterable[StoredMessage], message_id: str) -> list[Traced]:
    """Return what traces tell of a message, the earliest first."""
    found: list[Traced] = []
    begun: dict[str, Traced] = {}
    ended: dict[str, tuple[int | None, str]] = {}
    for client, fields in _records(messages):
        match fields:
            case ["Pub", at, _, group, _, of, _, _, _, _, took, _, *rest] if of == message_id:
                # The outcome is the 13th field, or the 14th behind the message's other id.
                succeeded = rest[1] if len(rest) > 1 else "".join(rest)
                found.append(
                    Traced(
                        what="sent",
                        group=group,
                        client=client,
                        at_ms=number_in(at) or 0,
                        took_ms=number_in(took),
                        result="success" if succeeded == "true" else "failed",
                    )
                )
            case ["SubBefore", at, _, group, request, of, times, *_] if of == message_id:
                begun[request] = Traced(
                    what="consumed",
                    group=group,
                    client=client,
                    at_ms=number_in(at) or 0,
                    took_ms=None,
                    result=None,
                    times=number_in(times) or 0,
                )
            case ["SubAfter", request, of, took, succeeded, *rest] if of == message_id:
                number = number_in(rest[1]) if len(rest) > 1 else None
                known = number is not None and number < len(_RESULTS)
                plain = "success" if succeeded == "true" else "failed"
                ended[request] = number_in(took), _RESULTS[number] if known and number is not None else plain
            case _:
                pass
    for request, one in begun.items():
        if request in ended:
            took_ms, result = ended[request]
            one = dataclasses.replace(one, took_ms=took_ms, result=result)
        found.append(one)
    return sorted(found, key=lambda one: one.at_ms)


def _records(messages: Iterable[StoredMessage]) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields of each record, with the address of the client that sent it."""
    for message in messages:
        text = (message.body or b"").decode("utf-8", "replace")
        for record in text.split(_RECORD_END):
            yield message.born_host, record.split(_FIELD_END)
