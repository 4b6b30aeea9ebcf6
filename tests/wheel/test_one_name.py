"""What was installed from the wheel has one name, and works where the user's own files are called like our rooms."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from broker.tools.wheel import ROOMS, below_trivet, place_in_wheel
from spark_analysis.session import AnalysisUnavailableError, require_environment
from tests.spark_analysis.test_shipping import SHORT, write_stale_read
from tests.wheel.conftest import ROOT, Installed, environment

pytestmark = pytest.mark.slow


def test_the_wheel_adds_one_name(installed: Installed) -> None:
    (information,) = installed.packages.glob("trivet-*.dist-info")
    record = [line.partition(",")[0] for line in (information / "RECORD").read_text().splitlines()]
    assert {Path(file).parts[0] for file in record} == {"trivet", information.name, ".."}
    assert {file for file in record if file.startswith("..")} == {"../../../bin/trivet"}


def test_the_wheel_has_every_file_of_the_rooms_and_no_other_change(installed: Installed) -> None:
    files = [ROOT / "trivet.py", *(file for room in ROOMS for file in (ROOT / room).rglob("*.*"))]
    wanted = {
        there: file
        for file in files
        if "__pycache__" not in file.parts and (there := place_in_wheel(file.relative_to(ROOT))) is not None
    }
    trivet = installed.packages / "trivet"
    found = {
        file.relative_to(installed.packages)
        for file in trivet.rglob("*.*")
        if "__pycache__" not in file.parts
    }
    assert found == {*wanted, Path("trivet/py.typed")}
    assert {"__init__.py", "__main__.py", "testing.py", "sync.py"} <= {
        file.name for file in trivet.glob("*.py")
    }
    for place, file in wanted.items():
        ours, theirs = file.read_text().splitlines(), (installed.packages / place).read_text().splitlines()
        assert len(ours) == len(theirs)
        changed = [line for line, other in zip(ours, theirs, strict=True) if line != other]
        assert all("import" in line or ":" in line for line in changed), place


def test_every_module_is_imported_under_its_one_name(installed: Installed) -> None:
    told = installed.program(
        """if True:
        import importlib, pkgutil, sys
        import trivet
        from trivet import *
        assert Producer is trivet.client.Producer
        for found in pkgutil.walk_packages(trivet.__path__, "trivet."):
            needs_extra = "spark" in found.name or found.name.startswith("trivet.broker.console.")
            if not found.name.endswith("__main__") and not needs_extra:
                importlib.import_module(found.name)
        print(sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
        """,
        *ROOMS,
    )
    assert told == "[]\n"


def test_the_name_alone_imports_nothing_of_the_client(installed: Installed) -> None:
    assert (
        installed.program(
            "import sys, trivet; print([name for name in sys.modules if name.startswith('trivet.')])"
        )
        == "[]\n"
    )


def test_types_are_there_for_checkers(installed: Installed) -> None:
    (installed.hostile / "typed.py").write_text(
        "import trivet\nimport trivet.testing\nfrom trivet import Producer, sync\n"
        "reveal_type(trivet.Message('a', b'').topic)\nreveal_type(trivet.testing.broker().__enter__().leader)\n"
        "reveal_type(Producer.send)\nreveal_type(sync.Consumer.poll)\n"
    )
    told = installed.run(installed.python, "-m", "mypy", "--strict", "typed.py")
    assert "Awaitable[trivet.broker.client.message.SendResult]" in told.replace(
        "Coroutine[Any, Any, ", "Awaitable["
    )
    assert "MessageView | None" in told
    assert 'type is "Any"' not in told


def test_the_command(installed: Installed) -> None:
    assert "Usage: trivet" in installed.run("trivet", "--help")
    assert "Usage: trivet" in installed.run(installed.python, "-m", "trivet", "--help")
    assert "namesrv" in installed.run("trivet", "produce", "--help")
    # runs a seed again in a process of its own
    assert "1 " in installed.run("trivet", "simulate", "--seeds", "11-12", "--seconds", "30", "--jobs", "2")


def produce(installed: Installed, topic: str, name_server: str) -> None:
    installed.run("trivet", "topic", "create", topic, "--namesrv", name_server)
    installed.run("trivet", "produce", topic, "hello", "--namesrv", name_server)


@pytest.mark.cluster
def test_a_cluster_takes_messages(installed: Installed, name_server: str) -> None:
    produce(installed, "Greetings", name_server)
    assert (
        installed.program(
            """if True:
        import sys
        import trio
        from trivet import Consumer, Message, Producer

        async def main():
            async with Producer(sys.argv[1], group="greeters") as producer:
                await producer.send(Message("Greetings", b"hello again"))
            async with Consumer(sys.argv[1], group="readers", topics="Greetings", start="first") as consumer:
                print(sorted([(await anext(aiter(consumer))).body for _ in range(2)]))

        trio.run(main)
        """,
            name_server,
        )
        == "[b'hello', b'hello again']\n"
    )


@pytest.fixture
def spark(tmp_path: Path) -> dict[str, str]:
    """Variables under which executors run a Python without Trivet."""
    try:
        require_environment()
    except AnalysisUnavailableError as error:
        pytest.skip(str(error))
    return {
        **SHORT,
        "PYSPARK_PYTHON": str(environment(tmp_path / "executors") / "bin" / "python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,1024]"])
def test_spark_judges_a_trace(
    installed: Installed, spark: dict[str, str], tmp_path: Path, master: str
) -> None:
    """In this process's workers by one task, and in executors that get the code sent by as many as it takes.

    Each starts among the hostile names.
    """
    write_stale_read(tmp_path / "stale.trace")
    if master.startswith("local["):
        del spark["PYSPARK_PYTHON"]
    else:
        spark["TRIVET_ONE_TASK_ROWS"] = "0"
    told = installed.run(
        *("trivet", "analyze", str(tmp_path / "stale.trace"), "--json", "--master", master),
        *("--scratch", str(tmp_path / "scratch")),
        code=1,
        **spark,
    )
    (history,) = json.loads(told)["histories"]
    assert history["counts"] == {"stale-read": 1}


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.cluster
def test_spark_reads_topics(installed: Installed, spark: dict[str, str], name_server: str) -> None:
    produce(installed, "Rows", name_server)
    told = installed.program(
        """if True:
        import sys
        from pyspark.sql import SparkSession
        from trivet.spark import register

        spark = SparkSession.builder.master("local-cluster[1,1,1024]").getOrCreate()
        register(spark)
        topics = spark.read.format("trivet").option("nameServers", sys.argv[1]).option("subscribe", "Rows")
        print([bytes(row.body) for row in topics.load().collect()])
        """,
        name_server,
        **spark,
    )
    assert told == "[b'hello']\n"


REWRITTEN = [
    ("from log.store import Store\n", "from trivet.log.store import Store\n"),
    ("from broker import assembly\n", "from trivet.broker import assembly\n"),
    ("from broker.public.client import A\n", "from trivet.client import A\n"),
    ("import simulation\n", "import trivet.simulation as simulation\n"),
    ("import log.store as logs, sys\n", "import trivet.log.store as logs, sys\n"),
    (
        "x = 1; from raft.core import (\n    Raft,\n)\n",
        "x = 1; from trivet.raft.core import (\n    Raft,\n)\n",
    ),
    ("ä = 'ä'; from raft.core import Raft\n", "ä = 'ä'; from trivet.raft.core import Raft\n"),
    (
        "def f():\n    from log.x import y; from raft import y\n",
        "def f():\n    from trivet.log.x import y; from trivet.raft import y\n",
    ),
    (
        "found = ('broker.tools.x:app', \"log.errors:E\")\n",
        "found = ('trivet.broker.tools.x:app', \"trivet.log.errors:E\")\n",
    ),
]
KEPT = [
    "import logging\nimport brokerage.x\nfrom logs.x import y\nfrom . import log\nfrom .log import x\n",
    "setting = 'broker.delay_levels'\nlog = open('log')\n",
    '"""Say `from broker.x import y`, or broker.x:y."""\n',
]


@pytest.mark.parametrize(("source", "wanted"), [*REWRITTEN, *((kept, kept) for kept in KEPT)])
def test_names_are_written_below_trivet(source: str, wanted: str) -> None:
    ast.parse(wanted)
    assert below_trivet(source, "x.py") == wanted


def test_an_import_without_an_equivalent_ends_the_build() -> None:
    with pytest.raises(ValueError, match=r"x\.py:2"):
        below_trivet("import sys\nimport log.store\n", "x.py")
