"""``trivet analyze``: the Spark checker over traces."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import ANALYSIS_FAILED, USAGE, CommandError
from broker.tools.cli.options import AsJson


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _Following:
    """The options for traces that are judged while they are written."""

    follow: Annotated[
        bool,
        Parameter(help="Judge the traces of one PATH while they are written, until something is wrong."),
    ] = False
    settle: Annotated[
        float,
        Parameter(
            help="With --follow: the longest time in seconds that recorders keep records before they write them."
        ),
    ] = 2.0
    quiet: Annotated[
        float | None,
        Parameter(help="With --follow: seconds without a write after which the recording is over."),
    ] = None

    def check(self) -> None:
        """Raise CommandError for times that are not above 0."""
        if not 0 < self.settle < math.inf:
            raise CommandError(f"--settle {self.settle:g}: seconds, more than 0", USAGE)
        if self.quiet is not None and not self.quiet > 0:
            raise CommandError(f"--quiet {self.quiet:g}: seconds, more than 0", USAGE)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _SearchBounds:
    """The bounds on searches, which models other than log need."""

    search_seconds: Annotated[
        float, Parameter(help="Models other than log: how long a key may be searched until it is undecided.")
    ] = 120.0
    search_memory: Annotated[
        int, Parameter(help="The same in MiB; as many searches run at once as Spark has cores.")
    ] = 512

    def check(self) -> None:
        """Raise CommandError for bounds that nothing could be searched within."""
        if not self.search_seconds > 0:
            raise CommandError(f"--search-seconds {self.search_seconds:g}: seconds, more than 0", USAGE)
        if not self.search_memory > 0:
            raise CommandError(f"--search-memory {self.search_memory}: MiB, more than 0", USAGE)


_INSTALL = "pip install 'trivet[analysis]' (in a checkout: '.[analysis]')"
_NO_FOLLOWING = _Following()
_USUAL_SEARCH = _SearchBounds()


def analyze(
    *paths: Annotated[
        Path, Parameter(help="Trace files, or directories with *.trace files; each is one history.")
    ],
    json: AsJson = False,
    format: Annotated[str, Parameter(help="What the files are.")] = "trace",
    model: Annotated[str, Parameter(help="What the history is judged against.")] = "log",
    master: Annotated[str | None, Parameter(help="Spark master; local[*] by default.")] = None,
    report: Annotated[Path | None, Parameter(help="Directory for the report.")] = None,
    witness: Annotated[
        Path | None,
        Parameter(
            help="File for an order of all operations that explains the history, if it is linearizable."
        ),
    ] = None,
    to_parquet: Annotated[
        Path | None, Parameter(help="Directory in which to keep the histories as Parquet.")
    ] = None,
    scratch: Annotated[
        str | None,
        Parameter(
            help="Directory or URL for intermediate files, which all executors reach; local by default."
        ),
    ] = None,
    drained: Annotated[
        bool,
        Parameter(
            help="Readers have read every queue to its end, so an acknowledged message that nobody saw is lost."
        ),
    ] = False,
    spark: Annotated[
        bool, Parameter(help="Ask Spark for short histories, too, which this process judges by itself.")
    ] = False,
    following: _Following = _NO_FOLLOWING,
    search: _SearchBounds = _USUAL_SEARCH,
) -> int:
    """Decide whether the traces are what a linearizable log allows; longer ones with Spark.

    A PATH is a trace file, or a directory whose *.trace files are one history. Exit codes: 0 it holds, 1 violated, 2
    wrong usage or no Java, 3 undecided, 4 the analysis itself failed. Spark needs Java 17 or later.
    """
    if not paths:
        raise CommandError("analyze needs at least one PATH of a trace", USAGE)
    search.check()
    with _loading():
        from spark_analysis.checking.search import Budget
        from spark_analysis.follow import Pace, follow
        from spark_analysis.main import LOG_MODELS, Asked
        from spark_analysis.main import analyze as decide
    asked = Asked(
        paths,
        format=format,
        model=model,
        master=master,
        report=report,
        json_output=json,
        to_parquet=to_parquet,
        scratch=scratch,
        drained=drained,
        witness=witness,
        budget=Budget(search.search_seconds, search.search_memory << 20),
        spark_wanted=spark,
    )
    if not following.follow:
        return decide(asked)
    is_of_a_batch = spark or (master, to_parquet, scratch, witness) != (None, None, None, None)
    if len(paths) > 1 or format != "trace" or model not in LOG_MODELS or is_of_a_batch:
        raise CommandError(
            "analyze --follow takes one PATH of traces, and of the options --model log or sparse-log, --report, "
            "--json, --drained, --settle and --quiet",
            USAGE,
        )
    following.check()
    return follow(asked, Pace(settle_s=following.settle, quiet_s=following.quiet))


@contextmanager
def _loading() -> Iterator[None]:
    """Turns a failed import of the analysis into a message that says what to install. Raises CommandError."""
    try:
        yield
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or missing.partition(".")[0] not in ("pyspark", "pandas", "pyarrow"):
            # As any fault of its own: exit code 1 is the verdict "violated".
            raise CommandError(
                f"the analysis cannot be loaded; no verdict: {error}", ANALYSIS_FAILED
            ) from error
        raise CommandError(
            f"the analysis needs {missing}, which is not installed: {_INSTALL}", USAGE
        ) from None


def require_analysis() -> None:
    """Raise CommandError where the traces of a run could not be judged: better before it than behind it."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise CommandError(
            f"the traces could not be judged, as pyarrow is not installed: {_INSTALL}; or leave that out with "
            "--no-analysis",
            USAGE,
        )
