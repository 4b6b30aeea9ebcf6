"""A Spark session that works on a laptop without preparation, and the checks that turn its traps into
sentences.

PySpark reports a missing Java as ``JAVA_GATEWAY_EXITED`` and starts workers with whatever ``python3`` is
first on the PATH; both are settled here before Spark is asked. On a cluster (``master`` given, or already
inside ``spark-submit``) the package ships itself to the executors as a zip, so that nothing has to be
installed there but third-party packages: PySpark, PyArrow and cbor2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.trace.archive import package_archive, ship
from spark_analysis.starting_java import ended_with_its_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

MINIMUM_JAVA: Final = 17
MEMORY_MINIMUM_MIB: Final = 800
MEMORY_HINT: Final = (
    f"it wants {MEMORY_MINIMUM_MIB} MiB at least, and has 4 GiB where ten million operations are measured; "
    "TRIVET_SPARK_MEMORY=4g sets it, with spark-submit --driver-memory 4g"
)
LARGE_JVM: Final = "-XX:+UseSerialGC -Xss4m -Xlog:disable -Xlog:all=warning:stderr"
"""Options of every Java; its warnings would go to standard output, into the middle of a verdict."""
SMALL_JVM: Final = f"{LARGE_JVM} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options for few operations. With one compiler the code cache is 48 MB by default, which a session of many histories
fills."""


def _quiet_logs() -> str:
    """The Java option that keeps remarks on the surroundings out of the verdict; none where a path has spaces."""
    path = Path(__file__).with_name("log4j2.properties")
    return "" if " " in str(path) else f"-Dlog4j2.configurationFile={path.as_uri()}"


class AnalysisUnavailableError(RuntimeError):
    """The machine lacks something the analysis needs; the message is one line and says how to get it."""


def is_submitted() -> bool:
    """True if ``spark-submit`` has started this process: its Java is there already, and has its own settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _require_memory(wanted: str) -> None:
    """Raise :class:`AnalysisUnavailableError` for a heap with which no history can be judged."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", wanted.strip().lower())
    if found is None:
        raise AnalysisUnavailableError(f"TRIVET_SPARK_MEMORY is {wanted!r}: give a size such as 4g")
    size = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]
    if size < MEMORY_MINIMUM_MIB << 20:
        raise AnalysisUnavailableError(f"a heap of {wanted} is too small for Spark's driver: {MEMORY_HINT}")


def java_major_version() -> int | None:
    """The major version of the Java that Spark would start, or None without one."""
    home = os.environ.get("JAVA_HOME")
    candidate = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if candidate is None:
        return None
    try:
        completed = subprocess.run(
            [candidate, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(found[1]) if found else None


def require_environment() -> None:
    """Raise :class:`AnalysisUnavailableError` unless PySpark and Java 17 or later are at hand."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise AnalysisUnavailableError(
            f"the analysis needs {error.name}, which is not installed: pip install 'trivet[analysis]' "
            "(in a checkout: '.[analysis]')"
        ) from None
    version = java_major_version()
    if version is None or version < MINIMUM_JAVA:
        have = "no Java was found" if version is None else f"this machine's Java is {version}"
        raise AnalysisUnavailableError(
            f"Spark needs Java {MINIMUM_JAVA} or later, but {have}: install it "
            "(Debian/Ubuntu: apt install openjdk-17-jre-headless; "
            "macOS: brew install openjdk@17) or set JAVA_HOME"
        )


_ahead: SparkSession | None = None
"""A session that was started ahead, until :func:`start_session` hands it out."""


def start_ahead() -> None:
    """Start the session of a short history's analysis that is still to come, from any thread.

    Java and Spark take seconds to start, in which whoever records the history may still be at work. What goes wrong
    here is not told: it goes wrong again in :func:`start_session`, for whoever asks for the session.
    """
    global _ahead
    with contextlib.suppress(Exception):
        _ahead = start_session(small=True)


def has_session() -> bool:
    """True if :func:`start_session` would return a session that somebody else has started."""
    if _ahead is not None:
        return False
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


def is_at_hand() -> bool:
    """True if :func:`start_session` would not have to start one."""
    return _ahead is not None or has_session()


def start_session(
    master: str | None = None,
    *,
    driver_memory: str | None = None,
    shuffle_partitions: int | None = None,
    small: bool,
    tell: Callable[[str], object] = lambda _: None,
) -> SparkSession:
    """Return the session of this process; start one if there is none. Raises :class:`AnalysisUnavailableError`.

    ``master`` is any Spark master URL; None keeps the one that ``spark-submit`` has set, else means every core of this
    machine. ``small`` is for histories of a few megabytes. One that was started ahead is returned as it is.
    ``tell`` is called with a sentence when one is about to be started, which takes a while.
    """
    global _ahead
    if _ahead is not None:
        session, _ahead = _ahead, None
        return session
    require_environment()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None or master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from spark_analysis.source import TraceDataSource

    submitted = is_submitted()
    builder = SparkSession.builder.appName("trivet analyze")
    if master is not None:
        builder = builder.master(master)
    elif not submitted:
        builder = builder.master("local[*]")
    local = not submitted and (master or "local").startswith("local")
    settings: dict[str, str] = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Timing and size estimates of Python sources are poor: let adaptive execution choose the joins.
        "spark.sql.adaptive.enabled": "true",
    }
    if local:
        cores = _cores(master)
        memory = driver_memory or os.environ.get("TRIVET_SPARK_MEMORY", _half_of_memory())
        _require_memory(memory)
        if small:
            # Most of a small analysis would be spent in compilers: Java's second one and Spark's code generation.
            settings["spark.sql.codegen.wholeStage"] = "false"
            settings["spark.sql.codegen.factoryMode"] = "NO_CODEGEN"
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": memory,
            "spark.sql.shuffle.partitions": str(shuffle_partitions or max(4, 4 * cores)),
            "spark.driver.extraJavaOptions": f"{SMALL_JVM if small else LARGE_JVM} {_quiet_logs()}",
            "spark.executor.extraJavaOptions": SMALL_JVM if small else LARGE_JVM,  # of a local-cluster
        }
    for key, value in settings.items():
        builder = builder.config(key, value)
    if not has_session():
        tell("Spark starts; with that, even a short history takes about half a minute")
    with ended_with_its_start():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # A cluster's own setting counts; where it has none, Spark's default of 200 tasks is too many for most histories.
    is_settled = local or session.sparkContext.getConf().contains("spark.sql.shuffle.partitions")
    if shuffle_partitions is not None and not is_settled:
        session.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions))
    rooms = ("broker/trace", "spark_analysis")
    ship(session.sparkContext, lambda: package_archive("trivet_analysis.zip", "*.*", *rooms))
    session.dataSource.register(TraceDataSource)
    return session


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """In the block Ctrl-C raises KeyboardInterrupt, and prints nothing. PySpark's own handler asks Java to cancel the
    jobs in the middle of another question, and py4j reports both with tracebacks. A session that starts in the block
    sets that handler: ``settle_interrupts`` takes it away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def is_told(record: logging.LogRecord) -> bool:
        return "while sending command" not in record.getMessage()

    root = logging.getLogger()  # py4j's reports of these go to the root
    before = signal.getsignal(signal.SIGINT)
    settle_interrupts()
    root.addFilter(is_told)
    try:
        yield
    finally:
        root.removeFilter(is_told)
        signal.signal(signal.SIGINT, before)


def settle_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, whoever wanted it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _cores(master: str | None) -> int:
    counted = re.fullmatch(r"local\[(\d+)\]", master or "")
    return int(counted[1]) if counted else (os.cpu_count() or 1)


def _half_of_memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return "2g"
    return f"{max(1024, min(8192, total // (2 << 20)))}m"
