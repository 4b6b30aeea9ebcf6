"""The loops in C give what the pure ones give, on messages and on hostile bytes, under the sanitizers, too."""

import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import ANY
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.assembly import store_options_of
from broker.settings.tables import Settings
from log.dispatching.dispatch import Allowance
from log.errors import DamagedRangeError
from log.formats import loops
from log.formats.entry_range import _checked_each
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES, UNIT_BYTES
from log.formats.loops import PURE, Loops, loops_in
from log.formats.record import pack_host
from tests.log.bursts import dispatched
from tests.log.messages import make_record

SANITIZED = "TRIVET_TEST_SANITIZED"
"""Set where this file runs below the sanitizers."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")
SOURCE = Path(loops.__file__).parents[1] / "fast" / "trivet_fast.c"
HOSTS = [pack_host("127.0.0.1", 1), pack_host("::1", 65535), b"", b"1234567", b"x" * 20]
FIRST, POSITION = 1000, 77_000


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module, made of its source with all warnings as errors."""
    library = tmp_path_factory.mktemp("fast") / "trivet_fast.so"
    flags = SANITIZERS if SANITIZED in os.environ else ("-O2",)
    include = sysconfig.get_paths()["include"]
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-field-initializers")
    command = ["gcc", "-shared", "-fPIC", *flags, *warnings, f"-I{include}", SOURCE, "-lz", "-o", library]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs gcc")
    if "zlib.h" in made.stderr or "Python.h" in made.stderr:
        pytest.skip(f"needs headers: {made.stderr.splitlines()[0]}")
    assert made.returncode == 0, made.stderr
    spec = spec_from_file_location(
        "trivet_fast", library, loader=ExtensionFileLoader("trivet_fast", str(library))
    )
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fast(compiled: ModuleType) -> Loops:
    return loops_in(compiled)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def entries(rng: random.Random) -> bytearray:
    parts: list[bytes] = []
    position, term = POSITION, rng.choice([0, 3, 2**40])
    for index in range(FIRST, FIRST + rng.randrange(1, 20)):
        body = rng.randbytes(rng.choice([0, 1, 100, rng.randrange(300)]))
        term += rng.random() < 0.2
        size = HEADER_BYTES + len(body)
        parts += (HEADER.pack(ENTRY_MAGIC, size, index, term, position, 0, 0, crc32(body), len(body)), body)
        position += size
    return bytearray(b"".join(parts))


def damage(rng: random.Random, raw: bytearray, places: list[int]) -> bytearray:
    """Cut, flipped, overwritten at a place where a number stands, or noise."""
    raw = bytearray(raw)
    kind = rng.randrange(4)
    if kind == 0:
        del raw[rng.randrange(len(raw)) :]
    elif kind == 1:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        at = min(
            rng.choice(places) + rng.choice([0, 4, 8, 16, 24, 32, 36, 40, 44, 48, 52, 76, 84, 132, 136]),
            len(raw) - 4,
        )
        number = rng.choice(
            [-1, -(2**31), 2**31 - 1, 0, 1, 47, 48, len(raw), len(raw) - at, rng.randrange(400)]
        )
        raw[at : at + 4] = number.to_bytes(4, "big", signed=True)
    else:
        raw[:] = rng.randbytes(len(raw))
    return raw


@given(st.integers(0, 2**32))
def test_the_same_ranges_are_sound(fast: Loops, seed: int) -> None:
    rng = random.Random(seed)
    raw = entries(rng)
    sound = _checked_each(memoryview(raw), FIRST, POSITION)
    assert fast.checked_run(memoryview(raw), FIRST, POSITION) == sound
    assert (
        fast.checked_run(memoryview(raw), FIRST, 0) is fast.checked_run(memoryview(raw), 0, POSITION) is None
    )
    places = [sound.position_of(index) - POSITION for index in range(FIRST, sound.last_index + 1)]
    for _ in range(20):
        damaged = memoryview(damage(rng, raw, places))
        try:
            expected = _checked_each(damaged, FIRST, POSITION) if damaged else None
        except DamagedRangeError:
            expected = None
        assert fast.checked_run(damaged, FIRST, POSITION) == expected


NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from(
        [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70]
    ),
)
RECORDS = st.tuples(
    st.integers(0, 300).map(lambda length: b"T" * length),
    *[NUMBERS | st.integers(0, 100)] * 6,
    st.sampled_from(HOSTS[:2]) | st.sampled_from(HOSTS),
    NUMBERS,
    st.sampled_from(HOSTS[:2]) | st.sampled_from(HOSTS),
    NUMBERS,
    NUMBERS,
    st.binary(max_size=200) | st.just(memoryview(b"a view")) | st.binary(max_size=9).map(bytearray),
    st.binary(max_size=99) | st.sampled_from([b"p" * 32767, b"p" * 32768]),
)


@given(RECORDS)
@example((b"T", 1, 2, 3, 4, 5, 6, HOSTS[0], 7, HOSTS[1], 8, 9, b"", b""))
@example((b"T" * 128, 1, 2, 3, 4, 0xFF, 6, HOSTS[1], 7, HOSTS[0], 8, 9, b"body", b"p" * 32767))
@example((b"T" * 127, 1, 2, 3, 4, -1, 6, HOSTS[0], 7, HOSTS[0], 8, 9, memoryview(b"body"), b"p"))
@example(("T", 1, 2, 3, 4, 5, 6, HOSTS[0], 7, HOSTS[0], 8, 9, b"", b""))
@example((b"T", 1.5, 2, 3, 4, 5, 6, HOSTS[0], 7, HOSTS[0], None, 9, b"", b""))
@example((b"T", 1))
def test_records_have_the_same_bytes_or_errors(fast: Loops, fields: tuple[object, ...]) -> None:
    assert outcome(lambda: fast.encode_record(*fields)) == outcome(lambda: PURE.encode_record(*fields))


def stored(by: Loops, data: bytes | bytearray, units: bytes | bytearray, *rest: Any) -> object:
    """What is stored where, or the error."""
    at, unit_at, *numbers, body = rest
    store: Any = by.store_entry
    result = outcome(lambda: store(memoryview(data), at, memoryview(units), unit_at, *numbers, body))
    return result or (data, units)


@given(st.integers(0, 400), st.integers(0, 200), NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=300))
@example(0, 0, 2, 3, 4, b"")
@example(400 - HEADER_BYTES, 200 - UNIT_BYTES, 2, 3, 4, b"")
@example(400 - HEADER_BYTES - 1, 200 - UNIT_BYTES, 2, 3, 4, b"12")
@example(0, 200 - UNIT_BYTES + 1, 2, 3, 4, b"12")
def test_entries_are_stored_as_the_same_bytes(
    fast: Loops, at: int, unit_at: int, term: int, index: int, position: int, body: bytes
) -> None:
    rest = (at, unit_at, term, index, position, body)
    found, wanted = [stored(by, bytearray(400), bytearray(200), *rest) for by in (fast, PURE)]
    assert found == wanted


def test_what_cannot_be_written_is_refused_as_by_the_pure_ones(fast: Loops) -> None:
    for data, units in ((b"d" * 99, bytearray(99)), (bytearray(99), b"u" * 99)):
        found, wanted = [stored(by, data, units, 0, 0, 1, 2, 3, b"body") for by in (fast, PURE)]
        assert found == wanted == (TypeError, ANY)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(100, 116))
def test_a_store_has_the_same_bytes(fast: Loops, seed: int, full: bool) -> None:
    """Log, ConsumeQueues and IndexFiles; hostile records, V2, IPv6, transactions and full disks among them."""
    taken = 0

    def counted(*arguments: object) -> object:
        nonlocal taken
        found = fast.plain_messages(*arguments)  # type: ignore[misc, arg-type]
        taken += 0 if found is None else found[0]
        return found

    counting = fast._replace(plain_messages=counted)  # type: ignore[arg-type]
    assert list(dispatched(seed, full=full, loops=counting)) == list(dispatched(seed, full=full))
    assert taken, "C has taken some"


@pytest.mark.parametrize("allowance", [Allowance(1, 10**6), Allowance(3, 10**6), Allowance(10**6, 20)])
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_dispatch_that_has_used_up_its_allowance_goes_on_there(
    fast: Loops, seed: int, allowance: Allowance
) -> None:
    *_, arrivals, files = dispatched(seed)
    for by in (PURE, fast):
        assert list(dispatched(seed, loops=by, allowance=allowance)) == [arrivals, files]


@given(st.integers(0, 2**32))
def test_hostile_bytes_lead_nowhere(compiled: ModuleType, seed: int) -> None:
    """Whatever stands in a data file, what is taken of it lies in it; the sanitizers see every byte that is read."""
    rng = random.Random(seed)
    raw, places, start = bytearray(), [], rng.choice([0, 1 << 30])
    for number in range(rng.randrange(1, 12)):
        places.append(len(raw))
        record = make_record(
            start + len(raw) + HEADER_BYTES,
            topic=rng.choice(["T", "U", "x" * 127, "x" * 128, ""]),
            queue_offset=number,
            body=rng.randbytes(rng.randrange(9)),
            properties=rng.choice(
                [b"", b"TAGS\x01a\x02KEYS\x01 b  c ", b"KEYS\x01", b"\x01\x02\x01", rng.randbytes(30)]
            ),
        )
        size = len(record) + HEADER_BYTES
        raw += (
            HEADER.pack(ENTRY_MAGIC, size, number, 1, start + places[-1], 0, 0, crc32(record), len(record))
            + record
        )
    raw += rng.choice([b"", b"\xff\xff\xff\xff" + bytes(MARKER_BYTES - 4), bytes(200)])
    for _ in range(20):
        damaged = damage(rng, raw, places)
        found = compiled.plain_messages(
            memoryview(bytes(damaged)), start, rng.choice([0, 0, *places]), 99, frozenset()
        )
        if found is not None:
            count, groups, keys = found
            assert count == sum(len(units) // 20 for _, _, _, units in groups) <= len(places)
            assert len(keys) % loops.KEY_TYPE.itemsize == 0
    for at in (len(raw), len(raw) + 1, -1, 2**62, 2**64):
        assert compiled.plain_messages(memoryview(raw), start, at, 99, frozenset()) is None


def test_topics_apart_and_other_arguments_are_not_plain(compiled: ModuleType) -> None:
    record = make_record(HEADER_BYTES, properties=b"TAGS\x01a")
    raw = (
        HEADER.pack(ENTRY_MAGIC, len(record) + HEADER_BYTES, 0, 1, 0, 0, 0, crc32(record), len(record))
        + record
    )
    count, groups, keys = compiled.plain_messages(memoryview(raw), 0, 0, 1, frozenset())
    assert (count, groups[0][:3], keys) == (1, (b"T", 0, 0), b"")
    assert compiled.plain_messages(memoryview(raw), 0, 0, 1, frozenset((b"T",))) is None
    assert compiled.plain_messages(memoryview(raw), 1, 0, 1, frozenset()) is None, "of another place"
    with pytest.raises(TypeError):
        compiled.plain_messages(memoryview(raw), 0, 0, 1, None)
    for name in ("check_entries", "store_entry", "encode_record", "plain_messages"):
        assert getattr(compiled, name)() is None
        assert getattr(compiled, name)(*[None] * 14) is None


def test_servers_take_what_is_installed_and_the_simulator_does_not(
    compiled: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from log.options import StoreOptions

    monkeypatch.setitem(sys.modules, "trivet_fast", compiled)
    monkeypatch.delenv("TRIVET_PURE", raising=False)
    assert loops._installed().name == "C"
    monkeypatch.setenv("TRIVET_PURE", "1")
    assert loops._installed() is PURE
    assert store_options_of(Settings()).loops is loops.INSTALLED
    assert StoreOptions().loops is PURE


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.skipif(SANITIZED in os.environ, reason="this is such a run")
def test_the_sanitizers_have_nothing_to_say(compiled: ModuleType) -> None:
    """All of the above, below the address sanitizer and that of undefined behaviour."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = Path(found.stdout.strip())
    if not library.is_absolute():
        pytest.skip("needs gcc's address sanitizer")
    environment = os.environ | {
        SANITIZED: "1",
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps what it has to its end
        "PYTHONMALLOC": "malloc",
    }
    options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout.replace("1 skipped", ""), "only this test is"
