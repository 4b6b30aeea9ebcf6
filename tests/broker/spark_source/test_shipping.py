"""The archive that goes to the executors is enough to read with."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

from broker.spark_source.shipping import rooms_archive


def test_the_archive_alone_has_the_reader() -> None:
    """In a Python that has the third-party packages on its path and not this project."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import broker.spark_source.source as source; "
        "print(source.__file__, source.TrivetDataSource.name())"
    )
    paths = [str(rooms_archive()), sysconfig.get_path("purelib")]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    place, name = done.stdout.split()
    assert place.startswith(paths[0])
    assert name == "trivet"
