"""The Java that the analysis starts."""

from __future__ import annotations

import subprocess

import pytest

from spark_analysis.session import LARGE_JVM, SMALL_JVM, java_major_version


@pytest.mark.spark
@pytest.mark.skipif(java_major_version() is None, reason="needs Java")
@pytest.mark.parametrize("options", [LARGE_JVM, SMALL_JVM])
def test_warnings_of_java_stay_out_of_standard_output(options: str) -> None:
    too_large = ["-Xmx64m", "-Xmn128m"]  # a young generation larger than the heap: Java warns and goes on
    completed = subprocess.run(
        ["java", *options.split(), *too_large, "-version"], capture_output=True, text=True, check=True
    )
    assert "[warning]" in completed.stderr
    assert completed.stdout == ""
