"""docs/configuration.md says what the code does: every key with its default, and examples that load."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from broker.settings.loading import load
from broker.settings.rocketmq_keys import BROKER_KEYS, NAME_SERVER_KEYS
from broker.settings.tables import NameServerSettings, Settings

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def rows_of(section: str) -> dict[str, list[str]]:
    """The cells of the table under a heading, by key."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"{section}\n")[2].partition("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("` "): row for row in rows}


@pytest.mark.parametrize("table", [field.name for field in msgspec.structs.fields(Settings)][:-1])
def test_every_key_is_documented_with_its_default(table: str) -> None:
    rows = rows_of(f"### `[{table}]`")
    settings = getattr(Settings(), table)
    assert rows.keys() == {field.name for field in msgspec.structs.fields(settings)}
    for name, row in rows.items():
        default = msgspec.to_builtins(getattr(settings, name))
        assert row[1].strip("` ") == msgspec.json.encode(default).decode(), name


def test_every_key_of_the_name_server_is_documented() -> None:
    names = {field.name for field in msgspec.structs.fields(NameServerSettings)} - {"warnings"}
    assert rows_of("## Keys of a name server").keys() == names


def test_every_effective_key_of_the_reference_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [key for key in (*BROKER_KEYS, *NAME_SERVER_KEYS) if f"`{key}`" not in text] == []


def test_the_two_examples_load_and_agree(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    loaded = []
    for language, name in (("toml", "n0.toml"), ("properties", "n0.conf")):
        match = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
        assert match is not None
        (tmp_path / name).write_text(match[1])
        loaded.append(load(tmp_path / name))
    from_toml, from_conf = loaded
    told = from_conf.advertised_address(10911)
    assert told == from_toml.advertised_address(10911) == "10.0.0.1:10911"
    without_advertise = msgspec.structs.replace(from_conf.node, advertise="")
    assert msgspec.structs.replace(from_conf, node=without_advertise) == from_toml
