"""Names that several actors share."""

TOPIC = "events"
GROUP = "readers"
