"""The properties of a dead letter tell where it comes from."""

from broker.sending.dead_letters import dead_letter_properties
from log.formats.properties import parse_properties

RETRIED = b"a\x01b\x02RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01ID"


def test_the_origin_that_the_retries_noted() -> None:
    told = parse_properties(dead_letter_properties(RETRIED, 1000))
    assert told == parse_properties(RETRIED) | {"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "ID"}


def test_what_was_not_noted_is_not_told() -> None:
    assert dead_letter_properties(b"a\x01b\x02RETRY_TOPIC\x01\x02", 1000) == b"a\x01b\x02RETRY_TOPIC\x01\x02"


def test_a_dead_letter_is_not_lost_for_what_it_tells() -> None:
    size = len(dead_letter_properties(RETRIED, 1000))
    assert len(dead_letter_properties(RETRIED, size)) == size
    assert dead_letter_properties(RETRIED, size - 1) == RETRIED
