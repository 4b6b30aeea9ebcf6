"""The options of the sink. All are checked here, on the driver, before the first row is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.spark_source.common_options import (
    SECURITY_NAMES,
    OptionError,
    Security,
    known_options,
    name_servers_of,
    number_of,
    positive,
    security_of,
    timeout_s_of,
)

DEFAULT_IN_FLIGHT: Final = 256
WRITE_ID_CHARACTERS_MAX: Final = 200

_NAMES: Final = (*("nameServers", "topic", "inFlight", "timeoutMs"), *SECURITY_NAMES)
_BATCH_ONLY: Final = ("writeId", "writeNumber")
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Options of a stream that Spark hands on and that mean nothing here."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options. ``topic`` is None if each row names its own."""

    name_servers: str
    topic: str | None
    in_flight: int
    timeout_s: float
    write_id: str | None
    """The name of a batch that may be written again; None for one that is not, and for a stream."""
    write_number: int
    security: Security = field(default_factory=Security)


def parse_sink_options(given: Mapping[str, str], *, streaming: bool, overwrite: bool) -> SinkOptions:
    """Check and return the options of a batch or a stream. Raises OptionError."""
    if overwrite:
        raise OptionError(
            "rows can only be appended to a topic: mode append for a batch, output mode append or update for a stream"
        )
    options = known_options(given, (*_NAMES, *(_SPARKS_OWN if streaming else _BATCH_ONLY)))
    write_id = options.get("writeId")
    if write_id is not None and not (0 < len(write_id) <= WRITE_ID_CHARACTERS_MAX and write_id.isprintable()):
        raise OptionError(
            f"option writeId is {write_id!r}: 1 to {WRITE_ID_CHARACTERS_MAX} printable characters"
        )
    if write_id is None and "writeNumber" in options:
        raise OptionError("option writeNumber goes with the option writeId")
    return SinkOptions(
        name_servers_of(options),
        options.get("topic"),
        positive(options, "inFlight") or DEFAULT_IN_FLIGHT,
        timeout_s_of(options),
        write_id,
        number_of("writeNumber", options.get("writeNumber", "0")),
        security_of(options),
    )
