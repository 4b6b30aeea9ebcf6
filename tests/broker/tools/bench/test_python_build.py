"""What an interpreter tells of its build, by the words of real ones."""

import pytest

from broker.tools.bench.results import PythonBuild, python_build


@pytest.mark.parametrize(
    ("variables", "schemes", "expected", "words"),
    [
        (
            # The flags for a profile are noted by builds that make none, too.
            {"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "-fprofile-use", "Py_DEBUG": "0"},
            ("posix_prefix",),
            PythonBuild(pgo=False, lto=False, debug=False),
            "built without PGO and LTO",
        ),
        (
            {"CONFIG_ARGS": "'--enable-optimizations' '--with-lto=full'"},
            ("posix_prefix",),
            PythonBuild(pgo=True, lto=True, debug=False),
            "built with PGO and LTO",
        ),
        (
            {"CONFIG_ARGS": "'--enable-optimizations' '--with-lto=no'"},
            ("posix_prefix",),
            PythonBuild(pgo=True, lto=False, debug=False),
            "built with PGO",
        ),
        (
            {"CONFIG_ARGS": "'--prefix=/usr'", "PGO_PROF_USE_FLAG": ""},
            ("posix_local", "deb_system"),
            PythonBuild(pgo=True, lto=None, debug=False),
            "built with PGO (of LTO it does not tell)",
        ),
        (
            {"PY_CORE_CFLAGS": "-fprofile-instr-use=code.profclangd -flto=thin"},
            ("posix_prefix",),
            PythonBuild(pgo=True, lto=True, debug=False),
            "built with PGO and LTO",
        ),
        (
            {"CONFIG_ARGS": "'--with-pydebug' '--enable-optimizations'", "Py_DEBUG": "1"},
            ("posix_prefix",),
            PythonBuild(pgo=True, lto=False, debug=True),
            "a debug build",
        ),
    ],
)
def test_build(
    variables: dict[str, str], schemes: tuple[str, ...], expected: PythonBuild, words: str
) -> None:
    build = python_build(lambda name: variables.get(name, ""), schemes)
    assert build == expected
    assert build.words == words
    assert build.is_optimised == (expected.pgo and not expected.debug)
