"""What is stored of a batch's properties is the same whether they are looked through together or one by one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from broker.remoting.headers import SendMessageHeader
from broker.requests.errors import RequestError
from broker.sending import batch_properties
from broker.sending.batch_properties import BatchProperties
from broker.sending.properties import AddedProperties, read_properties
from broker.settings.live import LiveSettings
from tests.broker.harness import Group
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import HOST

TEMPLATES = [
    "UNIQ_KEY\x01%08d\x02TAGS\x01a\x02WAIT\x01true\x02",
    "WAIT\x01true\x02UNIQ_KEY\x01%08d\x02TAGS\x01%04d",
    "UNIQ_KEY\x01%08d\x02WAIT\x01true",
    "UNIQ_KEY\x01%08d\x02WAIT\x01false\x02POP_CK\x01x y\x02",
    "POP_CKX\x01b\x02UNIQ_KEY\x01%08d",
    "UNIQ_KEY\x01%08d\x02note\x01DEL%04d\x02",
    "UNIQ_KEY\x01%08d\x02n\x01ü\x02KEYS\x01one %04d\x02",
    "XUNIQ_KEY\x01%08d\x02",
    "UNIQ_KEY\x01%08d\x02DELAY\x010\x02",
    "UNIQ_KEY\x01%08d\x02DELAY\x013\x02",
    "UNIQ_KEY\x01%08d\x02TRAN_MSG\x01true\x02",
    "UNIQ_KEY\x01%08d\x02UNIQ_KEY\x01all\x02",
    "UNIQ_KEY\x01%08d\x02b\x01" + "b" * 3000,
    "b\x01%08d",
    "",
]
ENVELOPES = ["", "UNIQ_KEY\x01all\x02", "b\x01c", "WAIT\x01true\x02x\x01y\x02", "DELAY\x013\x02"]


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_properties, "RUN_FROM", 16)


Outcome = tuple[list[bytes], str] | str


def outcomes(properties: list[bytes], envelope: str) -> tuple[Outcome, Outcome, bool]:
    """What comes of them by both ways, and whether they were taken together."""
    settings = LiveSettings(Group(1, start=False).members["n0"].config, MemoryDisk())
    header = SendMessageHeader("PG", "T", "TBW102", 4, 0, 0, 0, 0, envelope)

    def made() -> BatchProperties:
        """Each counts the keys that it makes from 1 on."""
        return BatchProperties(settings, AddedProperties("C", HOST), 7, header, read_properties(envelope))

    def outcome(way: Callable[[list[bytes]], tuple[list[bytes], str]]) -> Outcome:
        try:
            return way(properties)
        except RequestError as error:
            return error.remark

    together = False
    with contextlib.suppress(RequestError):
        together = made()._make_alike(properties) is not None
    return outcome(made().complete), outcome(made()._make_each), together


@pytest.mark.parametrize("template", range(len(TEMPLATES)))
def test_both_ways_store_the_same(template: int) -> None:
    rng = random.Random(template)
    text = TEMPLATES[template]
    for envelope in ENVELOPES:
        for oddness in (0.0, 0.05):
            properties = []
            for number in range(40):
                raw = bytearray((text % ((number,) * text.count("%"))).encode())
                if raw and rng.random() < oddness:
                    raw[rng.randrange(len(raw))] = rng.choice(b"\x01\x02 \xffz")
                properties.append(bytes(raw))
            together, alone, _ = outcomes(properties, envelope)
            assert together == alone


def test_batches_of_common_clients_are_looked_through_once() -> None:
    for template in TEMPLATES[:3]:
        properties = [(template % ((number,) * template.count("%"))).encode() for number in range(40)]
        together, _, were = outcomes(properties, "UNIQ_KEY\x01all\x02")
        assert were
        assert not isinstance(together, str)
        stored, keys = together
        added = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01C\x02"
        assert all(one.endswith(added) and b"WAIT" not in one and b"\x02\x02" not in one for one in stored)
        assert keys == ",".join([f"{number:08d}" for number in range(40)])
