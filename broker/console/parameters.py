"""The parameters of a request: its path, its query or its body as one struct, checked before anything is done with it.

Each question and order names a struct of its own; a field that it does not have is refused, as is a value that is out
of bounds. The limits are those that brokers have, where brokers have any.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

TopicName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\A[%|a-zA-Z0-9_-]+\Z")]
GroupName = TopicName
BrokerName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\A[!-~]+\Z")]
NodeId = BrokerName
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
QueueId = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=4_102_444_800_000)]
"""Milliseconds since 1970, before the year 2100."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=200)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parameters of a request; one that derives from this adds fields."""


class Nothing(Parameters, frozen=True):
    """The parameters of a request that has none."""


class ParametersError(ValueError):
    """A parameter of a request is not allowed; the text names it."""


Wanted = TypeVar("Wanted", bound=Parameters)


def read_query(values: list[tuple[str, str]], path: Mapping[str, str], wanted: type[Wanted]) -> Wanted:
    """Return the parameters of a question. Numbers and truth values are texts there. Raises ParametersError."""
    found: dict[str, str] = {}
    for name, value in values:
        if name in found or name in path:
            raise ParametersError(f"{name}: given twice")
        found[name] = value
    return _convert({**found, **path}, wanted, strict=False)


def read_body(body: bytes, path: Mapping[str, str], wanted: type[Wanted]) -> Wanted:
    """Return the parameters of an order, an object of JSON. Raises ParametersError."""
    try:
        found = msgspec.json.decode(body or b"{}", type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParametersError(f"the body is no object of JSON: {error}") from None
    for name in path:
        if name in found:
            raise ParametersError(f"{name}: given twice")
    return _convert({**found, **path}, wanted, strict=True)


def _convert(found: Mapping[str, object], wanted: type[Wanted], *, strict: bool) -> Wanted:
    try:
        return msgspec.convert(found, wanted, strict=strict)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        field = place.removesuffix("`")
        raise ParametersError(f"{field}: {reason}" if field else reason) from None
