"""``trivet analyze``: the Spark checker over traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import ANALYSIS_FAILED, USAGE, CommandError
from broker.tools.cli.options import AsJson


def analyze(
    *paths: Annotated[
        Path, Parameter(help="Trace files, or directories with *.trace files; each is one history.")
    ],
    json: AsJson = False,
    format: Annotated[str, Parameter(help="What the files are.")] = "trace",
    model: Annotated[str, Parameter(help="What the history is judged against.")] = "log",
    master: Annotated[str | None, Parameter(help="Spark master; local[*] by default.")] = None,
    report: Annotated[Path | None, Parameter(help="Directory for the report.")] = None,
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
        bool, Parameter(help="At the end readers have read every queue to its end: what nobody saw is lost.")
    ] = False,
    spark: Annotated[
        bool, Parameter(help="Ask Spark for short histories, too, which this process judges by itself.")
    ] = False,
    search_seconds: Annotated[
        float, Parameter(help="Models other than log: how long a key may be searched until it is undecided.")
    ] = 120.0,
    search_memory: Annotated[
        int, Parameter(help="The same in MiB; as many searches run at once as Spark has cores.")
    ] = 512,
) -> int:
    """Decide whether the traces are what a linearizable log allows; longer ones with Spark.

    A PATH is a trace file, or a directory whose *.trace files are one history. Exit codes: 0 it holds, 1 violated, 2
    wrong usage or no Java, 3 undecided, 4 the analysis itself failed. Spark needs Java 17 or later.
    """
    if not paths:
        raise CommandError("analyze needs at least one PATH of a trace", USAGE)
    try:
        from spark_analysis.checking.search import Budget
        from spark_analysis.main import analyze as decide
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or missing.partition(".")[0] not in ("pyspark", "pandas", "pyarrow"):
            # As any fault of its own: exit code 1 is the verdict "violated".
            raise CommandError(
                f"the analysis cannot be loaded; no verdict: {error}", ANALYSIS_FAILED
            ) from error
        raise CommandError(
            f'the analysis needs {missing}, which is not installed: pip install "trivet[analysis]"', USAGE
        ) from None
    return decide(
        paths,
        format=format,
        model=model,
        master=master,
        report=report,
        json_output=json,
        to_parquet=to_parquet,
        scratch=scratch,
        drained=drained,
        search_budget=Budget(search_seconds, search_memory << 20),
        spark_wanted=spark,
    )
